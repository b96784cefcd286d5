"""A supervised process that dies is started again where it was; others, and those that die for good, end the run."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.wire import control
from testbed.errors import RunFailed
from testbed.run.processes import MAX_RESTARTS, Fleet, Process
from testbed.run.supervision import Script

# Answers as an edge does; says in each answer how many messages it has had. Dies, once told to, without an answer.
_PROGRAM = """
import socket, sys
from aggregator.wire.control import Channel
answers = {"setup": "hello", "epoch": "epoch_ready", "arm": "armed", "retire": "retired"}
channel, had = Channel(socket.socket(fileno=int(sys.argv[1]))), []
while (message := channel.receive()) and message["type"] != "stop":
    had.append([message["type"], message.get("round", message.get("epoch"))])
    if message.get("deadly") == sys.argv[2]:
        sys.exit(3)
    channel.send(answers[message["type"]], had=had)
"""


def start(generation: str = "first") -> Process:
    ours, theirs = control.pair()
    fd = theirs.fileno()
    popen = subprocess.Popen([sys.executable, "-c", _PROGRAM, str(fd), generation], pass_fds=[fd])
    theirs.close()
    return Process("edge", "nyc", popen, ours)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    made.stop()


def ask(fleet: Fleet, kind: str, answer: str, **fields: object) -> list[list[object]]:
    edges = fleet.of("edge")
    fleet.send(edges, kind, **fields)
    had: list[list[object]] = fleet.gather(edges, answer, 20)[edges[0]]["had"]
    return had


def test_successor_is_told_what_is_in_force_and_answers_what_was_asked(fleet: Fleet) -> None:
    fleet.add(start(), start_again=lambda: start("second"))
    ask(fleet, "setup", "hello")
    for epoch in range(3):
        ask(fleet, "epoch", "epoch_ready", epoch=epoch)
    ask(fleet, "arm", "armed", round=0)
    ask(fleet, "retire", "retired", round=0)
    ask(fleet, "arm", "armed", round=1)
    had = ask(fleet, "retire", "retired", round=1, deadly="first")
    assert had == [["setup", None], ["epoch", 1], ["epoch", 2], ["arm", 1], ["retire", 1]]
    [restart] = fleet.restarts
    assert (restart.process, restart.how) == ("edge-nyc", "exit status 3")
    assert restart.outage_s > 0
    assert ask(fleet, "arm", "armed", round=2)[-1] == ["arm", 2]


def test_death_between_two_messages_is_found_when_the_next_is_sent(fleet: Fleet) -> None:
    fleet.add(start(), start_again=start)
    ask(fleet, "setup", "hello")
    [edge] = fleet.of("edge")
    edge.child.kill()
    edge.child.wait(20)
    assert ask(fleet, "arm", "armed", round=0) == [["setup", None], ["arm", 0]]
    assert [restart.how for restart in fleet.restarts] == ["signal 9"]


def test_process_that_dies_before_its_hello_ends_the_run(fleet: Fleet) -> None:
    fleet.add(start(), start_again=start)
    with pytest.raises(RunFailed, match=r"edge-nyc ended .*exit status 3"):
        ask(fleet, "setup", "hello", deadly="first")
    assert fleet.restarts == []


def test_process_that_dies_over_and_over_ends_the_run(fleet: Fleet) -> None:
    fleet.add(start(), start_again=start)
    ask(fleet, "setup", "hello")
    for _ in range(MAX_RESTARTS):
        [edge] = fleet.of("edge")
        edge.child.kill()
        edge.child.wait(20)
        ask(fleet, "arm", "armed", round=0)
    [edge] = fleet.of("edge")
    edge.child.kill()
    edge.child.wait(20)
    with pytest.raises(RunFailed, match=r"edge-nyc ended .*signal 9"):
        ask(fleet, "arm", "armed", round=0)


def test_successor_that_dies_of_the_same_message_ends_the_run(fleet: Fleet) -> None:
    fleet.add(start(), start_again=start)
    ask(fleet, "setup", "hello")
    with pytest.raises(RunFailed, match="edge-nyc could not be started again"):
        ask(fleet, "arm", "armed", round=0, deadly="first")


def test_process_that_cannot_be_started_again_ends_the_run_which_then_stops(fleet: Fleet) -> None:
    def cannot() -> Process:
        raise RunFailed("nobody is there to start it")

    fleet.add(start(), start_again=cannot)
    ask(fleet, "setup", "hello")
    with pytest.raises(RunFailed, match="nobody is there"):
        ask(fleet, "arm", "armed", round=0, deadly="first")
    fleet.stop()
    assert fleet.of("edge") == []


def test_script_keeps_what_is_in_force_and_what_is_open() -> None:
    script = Script()
    for kind, fields in (("setup", {}), ("epoch", {"epoch": 0}), ("arm", {"round": 0}), ("probe_report", {"probe": 1})):
        script.sent(kind, fields)
    assert not script.set_up
    for answer in ("hello", "epoch_ready", "armed"):
        script.received(answer)
    assert script.set_up
    assert [request.kind for request in script.requests] == ["setup", "epoch", "arm", "probe_report"]
    script.received("probe_report")
    script.sent("retire", {"round": 0})
    script.received("retired")
    assert [request.kind for request in script.requests] == ["setup", "epoch"]
    script.sent("stop", {})
    assert [request.kind for request in script.requests] == ["setup", "epoch"]


def test_script_forgets_an_epoch_once_it_is_left() -> None:
    script = Script()
    for kind, fields in (("setup", {}), ("epoch", {"epoch": 0}), ("epoch", {"epoch": 1}), ("leave", {"epoch": 0})):
        script.sent(kind, fields)
    for answer in ("hello", "epoch_ready", "epoch_ready"):
        script.received(answer)
    assert [request.kind for request in script.requests] == ["setup", "epoch", "epoch", "leave"]
    script.received("left")
    assert [(request.kind, request.fields.get("epoch")) for request in script.requests] == [
        ("setup", None),
        ("epoch", 1),
    ]
