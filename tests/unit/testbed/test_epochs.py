"""Which plan follows when: as scheduled, or planned again after the links have changed."""

from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.errors import TopologyError
from scheduler.plan import Flow, Plan
from scheduler.topology import Island, Topology, both_ways
from testbed.multicast.groups import Tree
from testbed.run.epochs import Epochs
from testbed.run.failures import LinkFailures
from testbed.run.frames import Framing
from testbed.run.program import Epoch, make_epoch
from testbed.run.settings import RunSettings
from testbed.scale import Scale
from tests.unit.testbed.plans import make_plan

TRIANGLE = Topology(
    "triangle",
    tuple(Island(name) for name in "abc"),
    (),
    tuple(link for (a, b) in ("ab", "bc", "ca") for link in both_ways(a, b, 1.0, 100.0)),
)
FRAMING = Framing(values=10, values_per_chunk=10, chunks=1, wire_bytes=146)
PLANS = {
    ms: make_plan([[Flow("a", ("b",), (("a", "b"),), 0, 80, 10)]], round_time_ms=ms) for ms in (100.0, 110.0, 120.0)
}


def _epoch(number: int, plan: Plan, live: list[Tree], used: set[str]) -> Epoch:
    return make_epoch(number, plan, TRIANGLE, FRAMING, Scale(), live=live, used_groups=used)


@pytest.fixture
def epochs(monkeypatch: pytest.MonkeyPatch) -> Epochs:
    """Epochs that need no processes to become ready, or to be left."""
    monkeypatch.setattr(Epochs, "_introduce", lambda self, epoch: None)
    monkeypatch.setattr(Epochs, "_leave", lambda self, epoch: None)
    parts: list[Any] = [
        SimpleNamespace(epoch=_epoch(0, PLANS[100.0], [], set())),
        SimpleNamespace(move=lambda moves: None),
    ]
    return Epochs(SimpleNamespace(), *parts, _epoch, lambda *_: None, lambda _: None, lambda: TRIANGLE)  # type: ignore[arg-type]


def _after(epochs: Epochs, round_number: int) -> float:
    """The round time that is in force after a round."""
    epochs.prepare(round_number)
    epochs.switch(round_number + 1)
    return epochs.current.plan.round_time_ms


def test_plans_follow_at_their_rounds_and_what_is_late_at_once(epochs: Epochs) -> None:
    epochs.schedule({3: PLANS[110.0], 5: PLANS[120.0]})
    assert [_after(epochs, number) for number in range(6)] == [100, 100, 110, 110, 120, 120]
    epochs.schedule({0: PLANS[100.0], 4: PLANS[110.0], 9: PLANS[120.0]})
    assert _after(epochs, 6) == 110  # the last of those that are due, and only that
    assert epochs.current.number == 3
    assert [_after(epochs, 7), _after(epochs, 8)] == [110, 120]


def _failures(epochs: Epochs, plans: Any, followed: Any = lambda trees: True) -> LinkFailures:
    plane: Any = SimpleNamespace(are_followed=followed)
    return LinkFailures(lambda: TRIANGLE, epochs, plans, lambda down: None, lambda reaction: None, plane, False, 0.1)


def test_when_links_change_everything_that_is_to_come_is_planned_again(epochs: Epochs) -> None:
    epochs.schedule({2: PLANS[120.0]})
    failures = _failures(epochs, lambda left: {0: PLANS[100.0], 2: PLANS[110.0]})
    failures.links_are_down([frozenset("ab")])
    assert failures.reactions[0].replanned_round_time_ms == 100.0
    assert failures.reactions[0].moved_trees == 1
    assert [_after(epochs, 0), _after(epochs, 1)] == [100, 110]


def test_of_a_network_that_is_cut_no_plan_follows(epochs: Epochs) -> None:
    def cut(left: Topology) -> dict[int, Plan]:
        raise TopologyError("cut")

    epochs.schedule({2: PLANS[120.0]})
    _failures(epochs, cut).links_are_down([frozenset("ab")])
    assert [_after(epochs, number) for number in range(3)] == [100, 100, 100]


def test_a_round_is_disturbed_when_routers_have_left_the_trees_and_when_they_return(epochs: Epochs) -> None:
    answers = [True, False, False, True, True]
    failures = _failures(epochs, lambda left: {}, lambda trees: answers.pop(0))
    assert [failures.disturbed(0, 1) for _ in range(5)] == [False, True, True, True, False]


def test_routers_that_find_no_ways_are_given_up_and_nothing_is_planned(epochs: Epochs) -> None:
    failures = _failures(epochs, lambda left: {0: PLANS[110.0]}, lambda trees: False)
    failures.links_are_down([frozenset("ab")])
    failures.links_are_down([], overtaken=lambda: True)
    assert [reaction.trouble[:30] for reaction in failures.reactions] == [
        "the routers did not find the s",
        "links changed again before the",
    ]
    assert _after(epochs, 0) == 100


def test_the_policy_of_a_round_and_those_that_follow() -> None:
    settings = RunSettings(policy="pairs", policy_schedule=((4, "triangles"), (9, "regional")))
    assert settings.policies_from(0) == {0: "pairs", 4: "triangles", 9: "regional"}
    assert settings.policies_from(8) == {4: "triangles", 9: "regional"}
    assert settings.policies_from(30) == {9: "regional"}
