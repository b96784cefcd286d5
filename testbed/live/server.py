"""The control socket of a run: answers clients from a thread of its own, and lets none of them disturb the run.

A thread, since it answers from the first second on, while the run plans and builds and so does not listen.
"""

import json
import os
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.live.protocol import MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, PROTOCOL, encode

Command = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Gets the request's fields and returns those of the answer, soon; a TestbedError is answered as its refusal."""

MOST_CLIENTS = 16


class ControlServer:
    """Listens until closed; root alone may connect."""

    def __init__(self, path: Path, run_id: str, commands: Mapping[str, Command]) -> None:
        """`commands` may change while it listens. Raises OSError."""
        self._run_id = run_id
        self._commands = commands
        self._clients: list[_Client] = []
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        before = os.umask(0o177)
        try:
            self._listener.bind(str(path))
        finally:
            os.umask(before)
        self._listener.listen(MOST_CLIENTS)
        self._listener.setblocking(False)
        self._closing = os.eventfd(0)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._closing, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve_all, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hang up on all clients. Safe to call twice."""
        if self._listener.fileno() < 0:
            return
        os.eventfd_write(self._closing, 1)
        self._thread.join()
        for client in list(self._clients):
            self._drop(client)
        self._selector.close()
        self._listener.close()
        os.close(self._closing)

    def _serve_all(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._closing:
                    return
                key.data()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it has given up already
        if len(self._clients) == MOST_CLIENTS:
            self._drop(self._clients[0])  # the one that has been silent longest
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_ANSWER_BYTES)
        client = _Client(connection)
        self._clients.append(client)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._serve(client))

    def _drop(self, client: "_Client") -> None:
        self._clients.remove(client)
        self._selector.unregister(client.connection)
        client.connection.close()

    def _serve(self, client: "_Client") -> None:
        """Take one request and answer it; hang up on a client that does not talk as agreed."""
        if client not in self._clients:
            return
        self._clients.append(self._clients.pop(self._clients.index(client)))
        try:
            data, _, flags, _ = client.connection.recvmsg(MAX_REQUEST_BYTES)
            if not data:
                self._drop(client)
                return
            answer, go_on = self._answer(client, data, whole=not flags & socket.MSG_TRUNC)
            client.connection.send(encode(answer))
        except OSError:
            go_on = False  # it is gone, or does not read its answers
        if not go_on:
            self._drop(client)

    def _answer(self, client: "_Client", data: bytes, whole: bool) -> tuple[dict[str, Any], bool]:
        """The answer to a request, and whether the talk goes on."""
        if not whole:
            return _refusal(f"a request has at most {MAX_REQUEST_BYTES} bytes"), False
        request = None
        with suppress(ValueError, RecursionError):
            request = json.loads(data)
        if not isinstance(request, dict) or not isinstance(request.get("command"), str):
            return _refusal('a request is a JSON object with a "command"'), False
        name = request.pop("command")
        if name == "hello":
            client.greeted = request.get("protocol") == PROTOCOL
            if not client.greeted:
                return _refusal(f"this run speaks protocol {PROTOCOL}; use the testbed that started it"), False
            return {"ok": True, "protocol": PROTOCOL, "run": self._run_id}, True
        if not client.greeted:
            return _refusal('say {"command": "hello", "protocol": N} first'), False
        if name not in self._commands:
            return _refusal(f"there is no command {name!r}; there are {', '.join(sorted(self._commands))}"), True
        try:
            return {"ok": True, **self._commands[name](request)}, True
        except TestbedError as error:
            return _refusal(str(error)), True
        except Exception as error:  # whatever goes wrong with a command, the run and its other clients go on
            return _refusal(f"{name} failed: {type(error).__name__}: {error}"), True


class _Client:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.greeted = False


def _refusal(error: str) -> dict[str, Any]:
    return {"ok": False, "error": error}
