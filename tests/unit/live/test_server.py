"""The control socket: what it answers, and that no client can disturb the run that serves it."""

import json
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aggregator.wire import control
from testbed.errors import TestbedError
from testbed.live.protocol import MAX_REQUEST_BYTES, PROTOCOL
from testbed.live.server import MOST_CLIENTS, ControlServer
from testbed.run.processes import Fleet, Process

TIMEOUT_S = 10.0


def _double(request: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(request.get("value"), int):
        raise TestbedError("value: not a number")
    return {"value": 2 * request["value"]}


class _Run:
    """A run's loop, waiting for a process that answers when the test says so."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "control"
        ours, self._theirs = control.pair()
        self._process = Process("edge", "nyc", None, ours)  # type: ignore[arg-type]
        self.fleet = Fleet(directory)
        self.fleet.add(self._process)
        self.server = ControlServer(self.path, "cafe0123", self.fleet, {"double": _double})
        self.outcome: list[object] = []
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def _loop(self) -> None:
        try:
            self.outcome.append(self.fleet.gather([self._process], "ready", TIMEOUT_S)[self._process]["round"])
        except BaseException as error:  # the test judges it
            self.outcome.append(error)

    def finish(self) -> None:
        """The run gets what it waits for, whatever clients have done."""
        self._theirs.send("ready", round=7)
        self._thread.join(TIMEOUT_S)
        self.server.close()
        assert self.outcome == [7]

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.settimeout(TIMEOUT_S)
        client.connect(str(self.path))
        return client


@pytest.fixture
def run(tmp_path: Path) -> Iterator[_Run]:
    running = _Run(tmp_path)
    yield running
    running.finish()


def ask(client: socket.socket, request: object) -> dict[str, Any]:
    client.send(request if isinstance(request, bytes) else json.dumps(request).encode())
    data = client.recv(1 << 20)
    answer: dict[str, Any] = json.loads(data) if data else {"closed": True}
    return answer


def greeted(run: _Run) -> socket.socket:
    client = run.connect()
    assert ask(client, {"command": "hello", "protocol": PROTOCOL}) == {
        "ok": True,
        "protocol": PROTOCOL,
        "run": "cafe0123",
    }
    return client


def still_works(run: _Run) -> bool:
    with greeted(run) as client:
        return ask(client, {"command": "double", "value": 21}) == {"ok": True, "value": 42}


def test_commands_are_answered_and_refused(run: _Run) -> None:
    with greeted(run) as client:
        assert ask(client, {"command": "double", "value": 4}) == {"ok": True, "value": 8}
        assert ask(client, {"command": "double"}) == {"ok": False, "error": "value: not a number"}
        answer = ask(client, {"command": "halve"})
        assert answer["ok"] is False
        assert "double" in answer["error"]
        assert ask(client, {"command": "double", "value": 5}) == {"ok": True, "value": 10}


def test_only_root_may_connect(run: _Run) -> None:
    mode = run.path.stat()
    assert stat.S_IMODE(mode.st_mode) == 0o600
    assert mode.st_uid == os.getuid()


def test_other_protocols_are_refused(run: _Run) -> None:
    with run.connect() as client:
        answer = ask(client, {"command": "hello", "protocol": PROTOCOL + 1})
        assert answer["ok"] is False
        assert f"protocol {PROTOCOL}" in answer["error"]
        assert client.recv(100) == b""
    with run.connect() as client:
        assert "hello" in ask(client, {"command": "double", "value": 1})["error"]
        assert client.recv(100) == b""


BAD: dict[str, bytes] = {
    "garbage": b"\xff\xfe\x00garbage",
    "half a message": b'{"command": "dou',
    "no object": b"[1, 2, 3]",
    "no command": b'{"value": 1}',
    "a command that is no text": b'{"command": ["double"]}',
    "too deep": b"[" * 60_000,
    "too long": b'{"command": "' + b"x" * MAX_REQUEST_BYTES + b'"}',
    "a huge number": b'{"command": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("what", sorted(BAD))
def test_bad_requests_end_the_talk_and_nothing_else(what: str, run: _Run) -> None:
    with greeted(run) as client:
        assert ask(client, BAD[what])["ok"] is False
        assert client.recv(100) == b""
    assert still_works(run)


def _leave_at_once(run: _Run) -> None:
    run.connect().close()


def _leave_without_reading(run: _Run) -> None:
    client = greeted(run)
    client.send(b'{"command": "double", "value": 1}')
    client.close()


def _never_read(run: _Run) -> None:
    client = greeted(run)
    client.settimeout(0.5)
    try:
        for _ in range(100_000):
            client.send(b'{"command": "nothing"}')
    except OSError:
        return
    finally:
        client.close()
    pytest.fail("a client that never reads was served without end")


def _too_many(run: _Run) -> None:
    clients = [greeted(run) for _ in range(MOST_CLIENTS + 5)]
    assert ask(clients[-1], {"command": "double", "value": 1})["ok"] is True
    assert sum(client.recv(1) == b"" for client in clients[:5]) == 5
    for client in clients:
        client.close()


@pytest.mark.parametrize("act", [_leave_at_once, _leave_without_reading, _never_read, _too_many])
def test_rude_clients_disturb_nobody(act: Callable[[_Run], None], run: _Run) -> None:
    act(run)
    assert still_works(run)


def test_calls_come_at_their_time_and_in_order(tmp_path: Path) -> None:
    running = _Run(tmp_path)
    calls: list[int] = []
    now_ns = time.monotonic_ns()
    for number in (3, 1, 2):
        running.fleet.call_at(now_ns + number * 10_000_000, lambda number=number: calls.append(number))  # type: ignore[misc]
    assert still_works(running)  # wakes the loop, which then knows of the calls
    deadline = time.monotonic() + TIMEOUT_S
    while len(calls) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert calls == [1, 2, 3]
    running.finish()
