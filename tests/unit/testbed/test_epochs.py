"""Epochs follow each other, or are given up; links that fail have their trees moved, and rounds marked."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.errors import TopologyError
from scheduler.plan import Flow, Plan
from scheduler.topology import Island, Topology, both_ways
from testbed.errors import RunFailed
from testbed.multicast.groups import Tree
from testbed.run.epochs import Epochs, NetworkChanged
from testbed.run.failures import LinkFailures, Reaction
from testbed.run.frames import Framing
from testbed.run.program import Epoch, make_epoch
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


def _epoch(number: int, plan: Plan, _left: Topology, live: list[Tree], used: set[str]) -> Epoch:
    return make_epoch(number, plan, TRIANGLE, FRAMING, Scale(), live=live, used_groups=used)


class Rig:
    """Epochs that need no processes to become ready, or to be left; `on_introduction` may raise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on_introduction: Callable[[], None] = lambda: None
        self.left: list[Epoch] = []
        monkeypatch.setattr(Epochs, "_introduce", lambda _self, _epoch: self.on_introduction())
        monkeypatch.setattr(Epochs, "_leave", lambda _self, epoch: self.left.append(epoch))
        parts: list[Any] = [
            SimpleNamespace(epoch=_epoch(0, PLANS[100.0], TRIANGLE, [], set())),
            SimpleNamespace(move=lambda moves: None),
        ]
        self.epochs = Epochs(
            SimpleNamespace(),  # type: ignore[arg-type]
            *parts,
            _epoch,
            lambda *_: None,
            lambda _: None,
            lambda: TRIANGLE,
        )
        self.failures = LinkFailures(
            lambda: TRIANGLE,
            self.epochs,
            lambda down: None,
            self.reacted,
            SimpleNamespace(are_followed=lambda trees: self.followed.pop(0) if self.followed else True),  # type: ignore[arg-type]
            False,
            patience_s=0.1,
        )
        self.followed: list[bool] = []
        self.reactions: list[Reaction] = []

    def reacted(self, reaction: Reaction) -> None:
        self.reactions.append(reaction)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def test_an_epoch_is_made_ready_beside_the_one_before_and_then_begins_its_schedule(rig: Rig) -> None:
    first = rig.epochs.current
    epoch = rig.epochs.introduce(PLANS[110.0], TRIANGLE)
    assert rig.epochs.current is first
    assert {tree.group for tree in epoch.distinct_trees()}.isdisjoint(tree.group for tree in first.distinct_trees())
    assert [live for live, _ in rig.epochs.live_and_planned()] == [*first.distinct_trees(), *epoch.distinct_trees()]
    assert rig.epochs.switch(7) is epoch
    assert (rig.epochs.current, rig.left, rig.epochs.first_round) == (epoch, [first], 7)
    assert rig.epochs.phase_of(7) == 0


def test_an_epoch_that_cannot_be_made_ready_is_left_again(rig: Rig) -> None:
    def fail() -> None:
        raise RunFailed("8 of 72 multicast paths carry nothing")

    first = rig.epochs.current
    rig.on_introduction = fail
    with pytest.raises(RunFailed, match="carry nothing"):
        rig.epochs.introduce(PLANS[110.0], TRIANGLE)
    assert [epoch.plan.round_time_ms for epoch in rig.left] == [110.0]
    assert [live for live, _ in rig.epochs.live_and_planned()] == first.distinct_trees()
    rig.on_introduction = lambda: None
    assert rig.epochs.introduce(PLANS[120.0], TRIANGLE).number == 1


def test_a_link_that_fails_meanwhile_is_told_from_an_epoch_that_cannot_be(rig: Rig) -> None:
    def fail() -> None:
        rig.failures.links_are_down([frozenset("ab")])
        raise RunFailed("1 of 1 multicast paths carry nothing")

    rig.on_introduction = fail
    with pytest.raises(NetworkChanged):
        rig.epochs.introduce(PLANS[110.0], TRIANGLE)
    # Both trees were moved: that of the epoch in force, and that of the one that was to come.
    assert [reaction.moved_trees for reaction in rig.reactions] == [2]
    assert rig.failures.changes == 1
    assert {link.id for link in rig.failures.left().links} == {("b", "c"), ("c", "b"), ("c", "a"), ("a", "c")}


def test_of_a_network_that_is_cut_nothing_is_left_to_plan_for(rig: Rig) -> None:
    rig.failures.links_are_down([frozenset("ab"), frozenset("bc")])
    assert rig.reactions[0].cut_off == ("b",)
    with pytest.raises(TopologyError):
        rig.failures.left()


def test_routers_that_find_no_ways_are_given_up(rig: Rig) -> None:
    rig.followed = [False] * 1000
    rig.failures.links_are_down([frozenset("ab")])
    rig.failures.links_are_down([], overtaken=lambda: True)
    assert [reaction.trouble[:30] for reaction in rig.reactions] == [
        "the routers did not find the s",
        "links changed again before the",
    ]


def test_a_round_is_disturbed_when_routers_have_left_the_trees_and_when_they_return(rig: Rig) -> None:
    rig.followed = [True, False, False, True, True]
    assert [rig.failures.disturbed(0, 1) for _ in range(5)] == [False, True, True, True, False]
