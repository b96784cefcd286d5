"""When sums are given up and what is missing is fetched, by plan; what repair puts on the links, by the counts."""

from typing import Any, cast

import pytest

from scheduler.plan import Flow
from scheduler.topology import Island, Topology, both_ways
from testbed.run.arrivals import Arrivals, planned_arrivals
from testbed.run.frames import Framing, packetisation_ms
from testbed.run.program import Epoch, make_epoch
from testbed.run.repairs import Closing, fetched_bytes, last_hop_repair_bytes, repair_counts
from testbed.run.rounds import RoundRecord
from testbed.scale import Scale
from tests.unit.testbed.plans import make_plan

LINE = Topology(
    "line",
    tuple(Island(name) for name in "abc"),
    (),
    (*both_ways("a", "b", 10.0, 100.0), *both_ways("b", "c", 5.0, 100.0)),
)
FRAMING = Framing(values=50, values_per_chunk=10, chunks=5, wire_bytes=5 * 146)
PLAN = make_plan(
    [
        [
            Flow("a", ("b", "c"), (("a", "b"), ("b", "c")), 0, 40, 1),
            Flow("b", ("a", "c"), (("b", "a"), ("b", "c")), 3, 60, 1),
            Flow("c", ("a", "b"), (("c", "b"), ("b", "a")), 20, 40, 1),
        ]
    ],
    round_time_ms=75,
)
SCALE = Scale(time_dilation=2.0)


def milliseconds(epoch: Epoch) -> tuple[dict[str, float], float, float]:
    [phase] = epoch.phases
    deadlines_ms = {island: SCALE.undilated_ms(ns) for island, ns in phase.deadlines_ns.items()}
    return deadlines_ms, SCALE.undilated_ms(phase.fetch_ns), SCALE.undilated_ms(phase.give_up_ns)


def test_arrivals_are_farthest_apart_at_one_end_of_the_streams() -> None:
    assert planned_arrivals(PLAN.rounds[0], LINE) == {
        # b from 13 to 73, c from 35 to 75
        "a": Arrivals(spread_ms=22, first_end_ms=73),
        # a from 10 to 50, c from 25 to 65
        "b": Arrivals(spread_ms=15, first_end_ms=50),
        # a from 15 to 55, b from 8 to 68
        "c": Arrivals(spread_ms=13, first_end_ms=55),
    }


def test_without_fetching_sums_wait_for_the_whole_round() -> None:
    packets_ms = packetisation_ms(PLAN.rounds[0], LINE, SCALE, FRAMING.full_frame_bytes)
    deadlines_ms, _, give_up_ms = milliseconds(make_epoch(0, PLAN, LINE, FRAMING, SCALE))
    assert deadlines_ms == pytest.approx(dict.fromkeys("abc", 75 + packets_ms + 200))
    assert give_up_ms == pytest.approx(75 + 75 + packets_ms + 200 + 500)


def test_with_fetching_they_wait_for_the_planned_spread() -> None:
    packets_ms = packetisation_ms(PLAN.rounds[0], LINE, SCALE, FRAMING.full_frame_bytes)
    deadlines_ms, fetch_ms, give_up_ms = milliseconds(make_epoch(0, PLAN, LINE, FRAMING, SCALE, fetch=True))
    spreads_ms = {"a": 22, "b": 15, "c": 13}
    assert deadlines_ms == pytest.approx({island: ms + packets_ms + 200 for island, ms in spreads_ms.items()})
    # The last to be given up is a's last sum, which begins when b's contribution has come.
    assert fetch_ms == pytest.approx(73 + 22 + 200 + 3 * packets_ms + 50)
    assert give_up_ms == pytest.approx(fetch_ms + 5000)


def record(retired: dict[str, dict[str, int]], done: dict[str, dict[str, int]]) -> RoundRecord:
    """A round of which only the reports on repair are looked at."""

    class Reports:
        def __init__(self) -> None:
            self.retired = {island: {"repair": counts} for island, counts in retired.items()}
            self.done = {host: {"repair": counts} for host, counts in done.items()}

    return cast(RoundRecord, cast(Any, Reports()))


RECORDS = [
    record({"a": {"nacks": 2, "repair_bytes": 900, "heartbeats": 3}, "b": {}}, {"a-h1": {"answers": 4, "missed": 1}}),
    record(
        {"a": {"nacks_limited": 1, "gone_answers": 1, "gone": 5}, "b": {"heartbeats": 1}}, {"b-h1": {"fetches_sent": 2}}
    ),
]


def test_counts_are_added_up() -> None:
    closing = Closing(edges={"a": {"heartbeats": 2}}, hosts={"b-h1": {"answers": 1}, "a-h1": {}}, late={"a-h1": 7})
    assert repair_counts(RECORDS, closing) == {
        "edges": {
            "gone": 5,
            "gone_answers": 1,
            "heartbeats": 6,
            "nacks": 2,
            "nacks_limited": 1,
            "repair_bytes": 900,
        },
        "hosts": {"answers": 5, "fetches_sent": 2, "missed": 1},
    }


def test_last_hop_repairs_are_on_the_access_links() -> None:
    assert last_hop_repair_bytes(RECORDS, hosts=1) == {
        ("a-h1", "a-e"): 3 * 106,
        ("a-e", "a-h1"): 900 + 4 * 106,
        ("b-h1", "b-e"): 0,
        ("b-e", "b-h1"): 106,
    }
    assert ("a-lan", "a-e") in last_hop_repair_bytes(RECORDS, hosts=2)


def test_what_is_fetched_may_be_anywhere() -> None:
    assert fetched_bytes(RECORDS, FRAMING) == 4 * 146 + 2 * 106
