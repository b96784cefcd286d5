"""The control socket: what it answers, and that no client can disturb another, or the run."""

import json
import os
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import TestbedError
from testbed.live.protocol import MAX_REQUEST_BYTES, PROTOCOL
from testbed.live.server import MOST_CLIENTS, ControlServer

TIMEOUT_S = 10.0


def _double(request: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(request.get("value"), int):
        raise TestbedError("value: not a number")
    return {"value": 2 * request["value"]}


def _fail(_request: Mapping[str, Any]) -> dict[str, Any]:
    raise ZeroDivisionError("division by zero")


class _Run:
    def __init__(self, directory: Path) -> None:
        self.path = directory / "control"
        self.server = ControlServer(self.path, "cafe0123", {"double": _double, "fail": _fail})

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.settimeout(TIMEOUT_S)
        client.connect(str(self.path))
        return client


@pytest.fixture
def run(tmp_path: Path) -> Iterator[_Run]:
    running = _Run(tmp_path)
    yield running
    assert still_works(running)
    running.server.close()
    running.server.close()
    with pytest.raises(ConnectionRefusedError):
        running.connect()


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
        assert ask(client, {"command": "fail"}) == {
            "ok": False,
            "error": "fail failed: ZeroDivisionError: division by zero",
        }
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
