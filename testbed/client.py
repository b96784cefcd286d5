"""Talks to a running experiment, as the command line does (docs/control.md).

with testbed.client.connect() as run:
    run.call("link_set", link="nyc-lon", values={"loss": "1%"})
"""

import json
import os
import socket
from typing import Any

from testbed.errors import TestbedError
from testbed.live.protocol import MAX_ANSWER_BYTES, PROTOCOL, encode, socket_path
from testbed.run.state import STATE_ROOT, living_runs

TIMEOUT_S = 30.0  # the machine may be very busy


class Client:
    """A connection to one run; use as a context manager."""

    def __init__(self, run_id: str) -> None:
        """Connect and agree on the protocol. Raises TestbedError."""
        self.run_id = run_id
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(TIMEOUT_S)
        try:
            self._socket.connect(str(socket_path(STATE_ROOT / run_id)))
        except OSError as error:
            self._socket.close()
            raise TestbedError(f"run {run_id}: cannot connect to it: {error.strerror}; it may have ended") from error
        self.call("hello", protocol=PROTOCOL)

    def call(self, command: str, **fields: Any) -> dict[str, Any]:
        """Send a command and wait for its answer. Raises TestbedError with the run's reason."""
        try:
            self._socket.send(encode({"command": command, **fields}))
            data = self._socket.recv(MAX_ANSWER_BYTES)
        except TimeoutError as error:
            raise TestbedError(f"run {self.run_id}: no answer within {TIMEOUT_S:.0f} s; it is too busy") from error
        except OSError as error:
            raise TestbedError(f"run {self.run_id}: {error.strerror}; it may have ended") from error
        if not data:
            raise TestbedError(f"run {self.run_id}: it has ended")
        answer: dict[str, Any] = json.loads(data)
        if not answer.pop("ok"):
            raise TestbedError(f"run {self.run_id}: {answer['error']}")
        return answer

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_running(run_id: str) -> bool:
    """Whether a run goes on."""
    return run_id in living_runs()


def connect(run_id: str | None = None) -> Client:
    """Connect to a run: the named one, or the only one. Raises TestbedError, naming those that there are."""
    if os.geteuid() != 0:
        raise TestbedError("acting on a run needs root; use sudo testbed …")
    runs = [run for run in living_runs() if socket_path(STATE_ROOT / run).exists()]
    known = f"there are {', '.join(runs)}" if runs else "none is running; start one with sudo testbed run"
    if run_id is None and len(runs) == 1:
        return Client(runs[0])
    if run_id is None:
        raise TestbedError(f"which run? {known}; name one with --run ID" if runs else f"no run: {known}")
    if run_id not in runs:
        raise TestbedError(f"--run {run_id}: there is no such run; {known}")
    return Client(run_id)
