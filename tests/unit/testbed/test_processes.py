"""The talk with a run's processes: answers are matched to questions; an error, an end or silence ends the run."""

import subprocess
import sys
import threading
import time
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


def test_an_error_is_heard_though_the_process_has_not_read_what_it_was_told_since(fleet: Fleet) -> None:
    process, other = _process("nyc", "")
    fleet.add(process)
    fleet.send([process], "train", round=0)
    other.send("trained", round=0)
    other.send("error", message="no such array")
    other.close()
    with pytest.raises(RunFailed, match="edge-nyc: no such array"):
        fleet.send([process], "contribute", round=0)


def test_end_of_a_process_is_named_with_its_status(fleet: Fleet) -> None:
    process, other = _process("nyc", "raise SystemExit(7)")
    fleet.add(process)
    process.child.wait(20)
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


def test_other_threads_ask_while_the_loop_waits(fleet: Fleet) -> None:
    process, other = _process("nyc", "")
    fleet.add(process)
    answers: list[object] = []

    def ask() -> None:
        for number in range(3):
            answer = fleet.ask({process: {"number": number}}, "probe", "probed", 10)
            answers.append(answer[process]["number"])
        other.send("done", round=1)

    def answer() -> None:
        for _ in range(3):
            message = other.receive()
            assert message is not None
            other.send("armed", round=message["number"])  # of the loop's own talk
            other.send("probed", number=message["number"])

    threads = [threading.Thread(target=ask), threading.Thread(target=answer)]
    for thread in threads:
        thread.start()
    assert fleet.gather([process], "done", 10)[process]["round"] == 1
    for thread in threads:
        thread.join(10)
    assert answers == [0, 1, 2]
    assert [fleet.gather([process], "armed", 1)[process]["round"] for _ in range(3)] == [0, 1, 2]


def test_a_late_answer_is_not_taken_for_that_to_a_later_question(fleet: Fleet) -> None:
    process, other = _process("nyc", "")
    fleet.add(process)
    outcome: list[object] = []

    def ask() -> None:
        with pytest.raises(RunFailed, match="'probed' within 0 s"):
            fleet.ask({process: {"number": 1}}, "probe", "probed", 0.1)
        outcome.append(fleet.ask({process: {"number": 2}}, "probe", "probed", 10)[process]["number"])
        other.send("done")

    def answer() -> None:
        for _ in range(2):
            other.receive()
        other.send("probed", number=1)
        other.send("probed", number=2)

    threads = [threading.Thread(target=ask), threading.Thread(target=answer)]
    for thread in threads:
        thread.start()
    fleet.gather([process], "done", 10)
    for thread in threads:
        thread.join(10)
    assert outcome == [2]


def test_questions_end_with_the_run(fleet: Fleet) -> None:
    process, _kept = _process("nyc", "")
    fleet.add(process)
    outcome: list[str] = []

    def ask() -> None:
        for _ in range(2):
            try:
                fleet.ask({process: {}}, "probe", "probed", 30)
            except RunFailed as error:
                outcome.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    fleet.wait(0.1)
    fleet.refuse_questions()
    thread.join(10)
    assert outcome == ["the run has ended"] * 2


def test_calls_come_at_their_time_and_in_order(fleet: Fleet) -> None:
    calls: list[int] = []
    now_ns = time.monotonic_ns()
    for number in (3, 1, 2):
        fleet.call_at(now_ns + number * 10_000_000, lambda number=number: calls.append(number))  # type: ignore[misc]
    fleet.wait(0.2)
    assert calls == [1, 2, 3]
