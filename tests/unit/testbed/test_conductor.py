"""Pauses and stops are heeded between two rounds, and refused where they make no sense."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.run.conductor import Conductor
from testbed.run.processes import Fleet


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.stop()


def run(conductor: Conductor, fleet: Fleet, first: int = 0) -> list[int]:
    """The rounds that are run from `first` on."""
    done = [first]
    conductor.started(first)
    while conductor.goes_on(done[-1], fleet):
        done.append(done[-1] + 1)
        conductor.started(done[-1])
    return done


def test_all_rounds_are_run(fleet: Fleet) -> None:
    assert run(Conductor(3), fleet) == [0, 1, 2]


def test_stop_ends_after_the_round_under_way_or_a_later_one(fleet: Fleet) -> None:
    conductor = Conductor(10)
    assert conductor.stop() == 0
    assert run(conductor, fleet) == [0]
    conductor = Conductor(10)
    assert conductor.stop(4) == 4
    assert run(conductor, fleet) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("after_round", [2, 10])
def test_stop_after_a_round_that_is_over_or_does_not_exist_is_refused(after_round: int) -> None:
    conductor = Conductor(10)
    conductor.started(3)
    with pytest.raises(TestbedError, match="round 4 is under way"):
        conductor.stop(after_round)
    assert conductor.last_round == 9


def test_nothing_starts_during_a_pause(fleet: Fleet) -> None:
    conductor = Conductor(3)
    with pytest.raises(TestbedError, match="not paused"):
        conductor.resume()
    assert conductor.pause() == 0
    with pytest.raises(TestbedError, match="already"):
        conductor.pause()
    held: list[bool] = []

    def resume() -> None:
        deadline = time.monotonic() + 10
        while not conductor.holding and time.monotonic() < deadline:
            time.sleep(0.01)
        held.append(conductor.holding)
        assert conductor.resume() == 1

    thread = threading.Thread(target=resume)
    thread.start()
    assert run(conductor, fleet) == [0, 1, 2]
    thread.join(10)
    assert held == [True]
    assert not conductor.holding


def test_stop_ends_a_pause(fleet: Fleet) -> None:
    conductor = Conductor(10)
    conductor.pause()
    conductor.stop()
    assert run(conductor, fleet) == [0]


def test_the_last_round_is_not_paused() -> None:
    conductor = Conductor(2)
    conductor.started(1)
    with pytest.raises(TestbedError, match="last round"):
        conductor.pause()
