"""What links should carry: by plan, without multicast, without aggregation, with several hosts."""

from scheduler.plan import Flow
from scheduler.topology import Island, Topology, both_ways
from testbed.run.accounting import LinkLoad, planned_streams, saving
from testbed.run.frames import Framing, shard_values
from testbed.run.program import make_epoch
from testbed.scale import Scale
from tests.unit.testbed.plans import make_plan

LINE = Topology(
    "line",
    tuple(Island(name) for name in "abc"),
    (),
    tuple(link for a, b in ("ab", "bc") for link in both_ways(a, b, 1.0, 100.0)),
)
FRAMING = Framing(values=50, values_per_chunk=10, chunks=5, wire_bytes=5 * 146)
PLAN = make_plan(
    [
        [
            Flow("a", ("b", "c"), (("a", "b"), ("b", "c")), 0, 10, 1),
            Flow("b", ("a", "c"), (("b", "a"), ("b", "c")), 0, 10, 1),
            Flow("c", ("b", "a"), (("c", "b"), ("b", "a")), 0, 10, 1),
        ]
    ]
)


def _streams(aggregation: str = "edge", hosts: int = 1, copies: bool | None = None) -> dict[tuple[str, str], int]:
    epoch = make_epoch(0, PLAN, LINE, FRAMING, Scale(), hosts)
    return planned_streams([(epoch, 0), (epoch, 0)], LINE, aggregation, hosts, copies)


def test_multicast_takes_each_link_once_per_stream() -> None:
    streams = _streams()
    assert streams["a", "b"] == 2
    assert streams["b", "c"] == 4
    assert streams["a-h1", "a-e"] == 2
    assert streams["a-e", "a-h1"] == 2


def test_unicast_takes_a_copy_per_receiver_behind_the_link() -> None:
    streams = _streams(copies=True)
    assert streams["a", "b"] == 4
    assert streams["b", "c"] == 4
    assert streams["a-h1", "a-e"] == 4
    assert streams["a-e", "a-h1"] == 2


def test_without_aggregation_every_stream_enters_the_island() -> None:
    assert _streams(aggregation="host")["a-e", "a-h1"] == 4


def test_hosts_of_an_island_share_its_access_link() -> None:
    streams = _streams(hosts=2)
    assert streams["a-lan", "a-e"] == 2
    assert ("a-h1", "a-e") not in streams


def test_saving_is_the_share_of_unicast_that_was_not_sent() -> None:
    loads = [
        LinkLoad("a", "b", 2, 4, 2 * FRAMING.wire_bytes, 2 * FRAMING.wire_bytes, 0, 0),
        LinkLoad("a-h1", "a-e", 2, 4, 0, 10**9, 0, 0),
    ]
    assert saving(loads, LINE, FRAMING)["saving"] == 0.5


def test_all_shards_but_the_last_have_whole_chunks() -> None:
    assert shard_values(Framing(47, 10, 5, 0), 2) == [20, 27]
    assert shard_values(Framing(47, 10, 5, 0), 3) == [10, 20, 17]
