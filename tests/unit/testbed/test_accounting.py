"""What links should carry: by plan, without multicast, without aggregation, with several hosts."""

from dataclasses import dataclass, field, replace
from typing import Any, cast

from scheduler.plan import Flow
from scheduler.topology import Island, Topology, both_ways
from testbed.links.interface import DirectionCounters
from testbed.run.accounting import LinkLoad, link_loads, planned_streams, saving
from testbed.run.frames import Framing, shard_values
from testbed.run.program import make_epoch
from testbed.run.rounds import RoundRecord
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


def test_what_links_were_asked_to_do_to_frames_is_allowed_for_behind() -> None:
    # b-c carries what a-b has sent twice, and lacks what a-b has lost or altered.
    for impairment, frames in (("duplicated", 3), ("dropped_loss", -3), ("corrupted", -3)):
        wire_bytes = FRAMING.wire_bytes + frames * FRAMING.full_frame_bytes
        for asked, ok in ((0, False), (3, True)):
            impaired: dict[str, Any] = {impairment: asked}
            after = {
                ("a", "b"): replace(_counters(FRAMING.wire_bytes), **impaired),
                ("b", "c"): _counters(wire_bytes),
            }
            record = cast(RoundRecord, _Counted(dict.fromkeys(after, _counters()), after))
            planned = {("a", "b"): 1, ("b", "c"): 1}
            [first, behind] = link_loads(planned, planned, {}, FRAMING, [record], dict.fromkeys(planned, 0))
            assert first.ok
            assert behind.ok == ok, (impairment, asked)


def test_what_a_kind_of_links_cannot_count_is_no_allowance() -> None:
    unknown = replace(_counters(FRAMING.wire_bytes), corrupted=None, reordered=None)
    short = replace(unknown, bytes_in=FRAMING.wire_bytes - 3 * FRAMING.full_frame_bytes)
    before = replace(_counters(), corrupted=None, reordered=None)
    for after, ok in ((unknown, True), (short, False)):
        record = cast(RoundRecord, _Counted({("a", "b"): before}, {("a", "b"): after}))
        [load] = link_loads({("a", "b"): 1}, {("a", "b"): 1}, {}, FRAMING, [record], {("a", "b"): 0})
        assert load.ok is ok


@dataclass(frozen=True)
class _Counted:
    """A round of which only the links' counters are looked at."""

    before: dict[tuple[str, str], DirectionCounters]
    after: dict[tuple[str, str], DirectionCounters]
    routing_bytes: dict[tuple[str, str], int] = field(default_factory=dict)


def _counters(bytes_in: int = 0) -> DirectionCounters:
    return DirectionCounters(
        frames_in=0,
        bytes_in=bytes_in,
        frames_out=0,
        bytes_out=0,
        dropped_queue=0,
        dropped_loss=0,
        dropped_other=0,
        queue_high_water_bytes=0,
        worst_lateness_ns=0,
    )
