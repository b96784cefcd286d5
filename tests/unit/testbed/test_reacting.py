"""Reactions to failed links run beside the run's loop: in order, and what they raise is not lost."""

import threading
from collections.abc import Callable, Iterator

import pytest

from testbed.run.reacting import Down, Reactor

A, B = frozenset({"a", "b"}), frozenset({"b", "c"})


class Reaction:
    """Waits until it may go on, and notes what it was called with."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.seen: list[Down] = []
        self.overtaken: list[bool] = []

    def __call__(self, down: Down, overtaken: Callable[[], bool]) -> None:
        assert self.may_go_on.wait(10)
        self.seen.append(down)
        self.overtaken.append(overtaken())
        if B in down:
            raise ValueError("no way")


@pytest.fixture
def reaction() -> Iterator[Reaction]:
    reaction = Reaction()
    yield reaction
    reaction.may_go_on.set()


def test_changes_are_answered_in_order_without_waiting(reaction: Reaction) -> None:
    reactor = Reactor(reaction)
    changes = [frozenset({A}), frozenset(), frozenset({A})]
    for down in changes:
        reactor.links_are_down(down)
    assert reaction.seen == []
    reactor.check()
    reaction.may_go_on.set()
    reactor.finish()
    assert reaction.seen == changes
    assert reaction.overtaken == [True, True, False]
    reactor.close()


def test_what_a_reaction_raises_is_raised_by_the_next_look(reaction: Reaction) -> None:
    reactor = Reactor(reaction)
    reactor.links_are_down(frozenset({B}))
    reaction.may_go_on.set()
    with pytest.raises(ValueError, match="no way"):
        reactor.finish()
    reactor.finish()
    reactor.close()
