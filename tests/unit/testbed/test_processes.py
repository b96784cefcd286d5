"""The talk with a run's processes: answers are matched to questions; an error, an end or silence ends the run."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.wire import control
from testbed.errors import RunFailed
from testbed.run.processes import Fleet, Process


def _process(island: str, code: str) -> tuple[Process, control.Channel]:
    ours, theirs = control.pair()
    popen = subprocess.Popen([sys.executable, "-c", code])
    return Process("edge", island, popen, ours), theirs


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.stop()


def test_answers_are_matched_by_kind_and_kept_until_asked_for(fleet: Fleet) -> None:
    process, other = _process("nyc", "")
    fleet.add(process)
    other.send("armed", round=3)
    other.send("done", round=2)
    assert fleet.gather([process], "done", 5)[process]["round"] == 2
    assert fleet.gather([process], "armed", 5)[process]["round"] == 3


def test_error_of_a_process_ends_the_run_with_its_words(fleet: Fleet) -> None:
    process, other = _process("nyc", "")
    fleet.add(process)
    other.send("error", message="no such engine")
    with pytest.raises(RunFailed, match="edge-nyc: no such engine"):
        fleet.gather([process], "hello", 5)


def test_end_of_a_process_is_named_with_its_status(fleet: Fleet) -> None:
    process, other = _process("nyc", "raise SystemExit(7)")
    fleet.add(process)
    process.popen.wait(20)
    other.close()
    with pytest.raises(RunFailed, match=r"edge-nyc ended .*exit status 7"):
        fleet.gather([process], "hello", 5)


def test_silence_is_named(fleet: Fleet) -> None:
    (first, answers), (second, _kept) = _process("nyc", ""), _process("lon", "")
    fleet.add(first)
    fleet.add(second)
    answers.send("hello")
    with pytest.raises(RunFailed, match="no 'hello' from edge-lon within 0 s"):
        fleet.gather([first, second], "hello", 0.2)
