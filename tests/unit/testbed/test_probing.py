"""Probes are repeated while a machine is too busy to carry them in time, and then the run is refused."""

import itertools
from typing import Any

import pytest

from scheduler.plan import Flow
from scheduler.topology import Island, Topology, both_ways
from testbed.errors import RunFailed
from testbed.run import probing
from testbed.run.frames import Framing
from testbed.run.probing import PATIENCE_S, probe_trees
from testbed.run.program import make_epoch
from testbed.scale import Scale
from tests.unit.testbed.plans import make_plan

PAIR = Topology("pair", (Island("a"), Island("b")), (), both_ways("a", "b", 10.0, 100.0))
EPOCH = make_epoch(
    0,
    make_plan([[Flow("a", ("b",), (("a", "b"),), 0, 80, 10)]], round_time_ms=100.0),
    PAIR,
    Framing(values=10, values_per_chunk=10, chunks=1, wire_bytes=146),
    Scale(),
)
(TREE,) = EPOCH.distinct_trees()
PLANNED_MS = 10.0 + PAIR.islands[0].access_one_way_delay_ms


class Edge:
    island = "b"


class BusyFleet:
    """Carries probes 50 ms late, or not at all, until the machine is `free` again; `wait` moves its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free_after_s: float, carries: bool = True) -> None:
        self._now_s, self._free_after_s, self._carries = 0.0, free_after_s, carries
        self._late_ms: dict[int, float] = {}
        monkeypatch.setattr(probing.time, "monotonic", lambda: self._now_s)

    def of(self, role: str) -> list[Any]:
        return [Edge()]

    def wait(self, seconds: float) -> None:
        self._now_s += seconds

    def ask(self, messages: dict[Any, dict[str, int]], kind: str, _answer: str, _timeout_s: float) -> dict[Any, Any]:
        answers = {}
        for process, message in messages.items():
            if kind == "probe":
                self._late_ms[message["probe"]] = 0.0 if self._now_s >= self._free_after_s else 50.0
            late_ms = self._late_ms[message["probe"]]
            arrivals = [(TREE.group, 0, round((PLANNED_MS + late_ms) * 1e6))]
            answers[process] = {"arrivals": arrivals if self._carries else []}
        return answers


def test_a_machine_that_is_busy_for_seconds_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet: Any = BusyFleet(monkeypatch, free_after_s=0.8 * PATIENCE_S)
    (path,) = probe_trees(fleet, EPOCH, PAIR, Scale(), itertools.count(), lambda: False)
    assert path.ok
    assert path.measured_ms == pytest.approx(PLANNED_MS)


@pytest.mark.parametrize(
    ("carries", "why"),
    [(True, "path a to b: one-way delay measured 60"), (False, "1 of 1 multicast paths carry nothing")],
)
def test_a_path_that_never_is_as_planned_is_named(carries: bool, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet: Any = BusyFleet(monkeypatch, free_after_s=float("inf"), carries=carries)
    with pytest.raises(RunFailed, match=why):
        probe_trees(fleet, EPOCH, PAIR, Scale(), itertools.count(), lambda: False)


def test_a_network_that_has_changed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet: Any = BusyFleet(monkeypatch, free_after_s=0.8 * PATIENCE_S)
    with pytest.raises(RunFailed):
        probe_trees(fleet, EPOCH, PAIR, Scale(), itertools.count(), lambda: True)
