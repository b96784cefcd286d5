"""Swaps: planned and made ready one after the other beside the rounds, in force at boundaries, or given up."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.errors import TopologyError
from scheduler.plan import Plan
from scheduler.topology import Topology
from testbed.errors import RunFailed, TestbedError
from testbed.run.epochs import NetworkChanged
from testbed.run.planning import PlanRequest
from testbed.run.processes import Fleet
from testbed.run.settings import RunSettings
from testbed.run.swaps import Left, Swap, Swaps
from testbed.topology.load import load_topology
from tests.unit.testbed.plans import make_plan

PATIENCE_S = 10.0
TOPOLOGY = load_topology("nine-city")


class FakePlanner:
    """Plans what it is told to; `hold` makes it wait."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.asked: list[tuple[str, float, Topology]] = []

    def give_up(self) -> None:
        self.go_on.set()

    def stop(self) -> str:
        return "as asked"

    def plan(self, request: PlanRequest, _time_limit_s: float) -> Plan:
        self.asked.append((request.policy, request.memory_gb, request.topology))
        assert self.go_on.wait(PATIENCE_S)
        if request.policy == "impossible":
            raise TestbedError("policy impossible cannot run with 32 GB")
        return plan_of(request.policy)


class FakeEpochs:
    """Introduces at once, unless told what to raise, plan by plan."""

    def __init__(self) -> None:
        self.number = 0
        self.ready: Plan | None = None
        self.introduced: list[str] = []
        self.trouble: list[BaseException] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def introduce(self, plan: Plan, _left: Topology) -> None:
        assert self.go_on.wait(PATIENCE_S)
        self.introduced.append(plan.policy)
        if self.trouble:
            raise self.trouble.pop(0)
        self.ready = plan

    def switch(self, _next_round: int) -> "FakeEpochs":
        assert self.ready is not None
        self.number += 1
        self.ready = None
        return self


def plan_of(policy: str) -> Plan:
    return replace(make_plan([]), policy=policy)


class Rig:
    def __init__(self, directory: Path) -> None:
        self.planner, self.epochs, self.over = FakePlanner(), FakeEpochs(), list[Swap]()
        self.left: Callable[[], Left] = lambda: Left(TOPOLOGY, 0)
        self.fleet = Fleet(directory)
        self.swaps = Swaps(
            self.planner,  # type: ignore[arg-type]
            self.epochs,  # type: ignore[arg-type]
            RunSettings(),
            self._left,
            self.over.append,
        )

    def _left(self) -> Left:
        return self.left()

    def wait_for(self, swap: Swap, state: str) -> Swap:
        deadline = time.monotonic() + PATIENCE_S
        while (now := self.swaps.show(swap.number)).state != state:
            assert time.monotonic() < deadline, now
            time.sleep(0.005)
        return now

    def boundary(self, next_round: int) -> None:
        self.swaps.switch(next_round, self.fleet)
        self.swaps.round_started(next_round)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    made.swaps.round_started(0)
    yield made
    made.planner.go_on.set()
    made.epochs.go_on.set()
    made.swaps.close()
    made.fleet.stop()


def test_a_swap_takes_over_at_the_boundary_after_it_is_ready(rig: Rig) -> None:
    asked = rig.swaps.request("pairs", 8)
    assert (asked.number, asked.asked_in_round) == (0, 0)
    rig.wait_for(asked, "ready")
    rig.boundary(1)
    swap = rig.swaps.show(0)
    assert (swap.state, swap.first_round, swap.epoch) == ("in force", 1, 1)
    assert list(swap.steps_ms) == ["waiting", "planning", "installing", "in force after"]
    assert swap.steps_ms["in force after"] >= swap.steps_ms["planning"] + swap.steps_ms["installing"]
    assert rig.planner.asked == [("pairs", 8, TOPOLOGY)]
    assert rig.over == [swap]


def test_planning_never_holds_up_a_boundary(rig: Rig) -> None:
    rig.planner.go_on.clear()
    asked = rig.swaps.request("pairs", at_round=1)
    rig.wait_for(asked, "planning")
    rig.boundary(1)
    rig.planner.go_on.set()
    rig.wait_for(asked, "ready")
    rig.boundary(2)
    assert rig.swaps.show(0).first_round == 2


def test_what_is_asked_for_a_round_takes_over_then(rig: Rig) -> None:
    asked = rig.swaps.request("pairs", at_round=3)
    rig.wait_for(asked, "scheduled")
    rig.boundary(1)
    assert rig.epochs.introduced == []
    rig.epochs.go_on.clear()
    rig.boundary(2)
    threading.Timer(0.1, rig.epochs.go_on.set).start()
    rig.boundary(3)  # waits for the installation
    assert rig.swaps.show(0).first_round == 3


def test_the_schedule_is_planned_already_and_exact(rig: Rig) -> None:
    rig.swaps.request("pairs", cause="schedule", at_round=2, plan=plan_of("pairs"))
    rig.swaps.request("regional", cause="schedule", at_round=3, plan=plan_of("regional"))
    for number in (1, 2, 3):
        rig.boundary(number)
    assert [swap.first_round for swap in rig.swaps.all] == [2, 3]
    assert rig.planner.asked == []


def test_the_second_boundary_waits_for_what_is_being_installed(rig: Rig) -> None:
    rig.epochs.go_on.clear()
    rig.wait_for(rig.swaps.request("pairs"), "installing")
    rig.boundary(1)
    threading.Timer(0.1, rig.epochs.go_on.set).start()
    rig.boundary(2)
    assert rig.swaps.show(0).first_round == 2


def test_of_two_for_one_round_the_later_is_kept(rig: Rig) -> None:
    swaps = [rig.swaps.request(policy, at_round=3) for policy in ("pairs", "regional")]
    rig.wait_for(swaps[1], "scheduled")
    assert rig.wait_for(swaps[0], "failed").error == "another was asked for at round 4"
    assert [swap.number for swap in rig.over] == [0]


def test_a_boundary_waits_for_one_swap_only(rig: Rig) -> None:
    rig.swaps.request("regional", cause="schedule", at_round=2, plan=plan_of("regional"))
    rig.boundary(1)
    rig.wait_for(rig.swaps.show(0), "ready")
    late = rig.swaps.request("pairs", at_round=2)
    rig.boundary(2)
    rig.wait_for(late, "ready")
    rig.boundary(3)
    assert [swap.first_round for swap in rig.swaps.all] == [2, 3]


def test_swaps_take_over_in_the_order_of_asking(rig: Rig) -> None:
    swaps = [rig.swaps.request(policy) for policy in ("pairs", "regional")]
    rig.wait_for(swaps[0], "ready")
    rig.boundary(1)
    rig.wait_for(swaps[1], "ready")
    rig.boundary(2)
    assert [swap.first_round for swap in rig.swaps.all] == [1, 2]


def test_what_cannot_be_planned_or_installed_is_given_up_with_the_reason(rig: Rig) -> None:
    rig.wait_for(rig.swaps.request("impossible"), "failed")
    rig.epochs.trouble = [RunFailed("8 of 72 multicast paths carry nothing")]
    rig.wait_for(rig.swaps.request("pairs"), "failed")
    rig.epochs.trouble = [ZeroDivisionError("a defect")]
    rig.wait_for(rig.swaps.request("regional"), "failed")
    assert [swap.error for swap in rig.over] == [
        "policy impossible cannot run with 32 GB",
        "8 of 72 multicast paths carry nothing",
        "a defect",
    ]
    rig.boundary(1)
    assert rig.epochs.number == 0
    rig.wait_for(rig.swaps.request("triangles"), "ready")


def test_links_that_fail_meanwhile_have_it_planned_again(rig: Rig) -> None:
    versions = iter([1, 2, 2, 2, 2])
    rig.left = lambda: Left(TOPOLOGY, next(versions))
    rig.epochs.trouble = [NetworkChanged()]
    rig.wait_for(rig.swaps.request("pairs"), "ready")
    assert [policy for policy, _, _ in rig.planner.asked] == ["pairs", "pairs"]
    assert rig.epochs.introduced == ["pairs", "pairs"]


def test_a_cut_network_gives_a_swap_up(rig: Rig) -> None:
    def cut() -> Left:
        raise TopologyError("no way from nyc to tyo")

    rig.left = cut
    assert rig.wait_for(rig.swaps.request("pairs"), "failed").error == "no way from nyc to tyo"


def test_replanning_takes_the_policy_that_is_or_shall_be_in_force(rig: Rig) -> None:
    rig.swaps.replan()
    rig.planner.go_on.clear()
    rig.swaps.request("pairs", 8)
    rig.swaps.request("impossible", at_round=5)
    rig.planner.go_on.set()
    rig.wait_for(rig.swaps.show(0), "ready")
    rig.boundary(1)
    rig.wait_for(rig.swaps.show(1), "ready")
    rig.boundary(2)
    rig.wait_for(rig.swaps.show(2), "failed")
    rig.swaps.replan()
    assert [(swap.policy, swap.memory_gb, swap.cause) for swap in rig.swaps.all] == [
        ("all-to-all", 32, "links"),
        ("pairs", 8, "command"),
        ("impossible", 32, "command"),
        ("pairs", 8, "links"),
    ]


def test_what_is_scheduled_is_planned_again_as_well_when_links_change(rig: Rig) -> None:
    rig.swaps.request("pairs", cause="schedule", at_round=5, plan=plan_of("pairs"))
    rig.left = lambda: Left(TOPOLOGY, 1)
    rig.swaps.replan()
    rig.wait_for(rig.swaps.show(1), "ready")
    rig.boundary(1)
    rig.wait_for(rig.swaps.show(0), "scheduled")
    assert [policy for policy, _, _ in rig.planner.asked] == ["all-to-all", "pairs"]
    for number in (2, 3, 4, 5):
        rig.boundary(number)
    assert rig.swaps.show(0).first_round == 5
    # It is in force now, though what was planned again for the links was asked for after it.
    rig.swaps.replan()
    assert rig.swaps.show(2).policy == "pairs"


def test_replanning_that_has_not_begun_stands_for_later_changes(rig: Rig) -> None:
    rig.planner.go_on.clear()
    rig.wait_for(rig.swaps.request("pairs"), "planning")
    for _ in range(3):
        rig.swaps.replan()
    assert [swap.cause for swap in rig.swaps.all] == ["command", "links"]


def test_impossible_requests_are_refused(rig: Rig) -> None:
    with pytest.raises(TestbedError, match="have 32 GB"):
        rig.swaps.request("pairs", 33)
    rig.boundary(4)
    with pytest.raises(TestbedError, match="round 5 has begun"):
        rig.swaps.request("pairs", at_round=4)
    with pytest.raises(TestbedError, match="no swap 7"):
        rig.swaps.show(7)
    assert rig.swaps.all == []


def test_a_swap_that_is_under_way_at_the_end_holds_up_nothing(rig: Rig) -> None:
    rig.epochs.go_on.clear()
    rig.wait_for(rig.swaps.request("pairs"), "installing")
    threading.Timer(0.1, rig.epochs.go_on.set).start()
    rig.swaps.close()
    assert rig.over == []
