"""The processes of a run and the talk with them (docs/run-control.md)."""

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from aggregator.wire import control
from testbed.errors import RunFailed

RUN_ID_VARIABLE = "TESTBED_RUN"
STOP_TIMEOUT_S = 3.0
# Undilated; how long a run waits for its processes.
TRAINING_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 30.0

# One thread for linear algebra and fixed hashing, so that the same training gives the same bits everywhere.
_PINNED = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "BLIS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}


def pinned_environment(run_id: str) -> dict[str, str]:
    """The environment in which every training process runs, whether networked or not."""
    return {**os.environ, **_PINNED, RUN_ID_VARIABLE: run_id}


def python_command(module: str, *arguments: str) -> list[str]:
    """A command line for one of our modules. -P: a folder of that name in the user's directory must not win."""
    return [sys.executable, "-P", "-m", module, *arguments]


@dataclass(frozen=True)
class Process:
    """One process of a run: `role` is edge, dataplane or trainer; `host` is the number of a data plane's host."""

    role: str
    island: str
    popen: subprocess.Popen[bytes] = field(compare=False, hash=False)
    channel: control.Channel = field(compare=False, hash=False)
    host: int = 1

    @property
    def name(self) -> str:
        return _name(self.role, self.island, self.host)


def _name(role: str, island: str, host: int) -> str:
    return f"{role}-{island}" if host == 1 else f"{role}-{island}-h{host}"


def spawn(
    role: str, module: str, island: str, namespace_pid: int | None, run_id: str, log_dir: Path, host: int = 1
) -> Process:
    """Start a process of the run, in the network namespace of `namespace_pid` if given.

    It dies with this process, whatever becomes of it, and is no target of the terminal's interrupts.
    """
    ours, theirs = control.pair()
    command = ["setpriv", "--pdeathsig", "KILL"]
    if namespace_pid is not None:
        command += ["nsenter", f"--net=/proc/{namespace_pid}/ns/net"]
    command += python_command(module, "--control-fd", str(theirs.fileno()))
    with (log_dir / f"{_name(role, island, host)}.log").open("wb") as log:
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[theirs.fileno()],
            env=pinned_environment(run_id),
            start_new_session=True,
        )
    theirs.close()
    return Process(role, island, popen, ours, host)


class Fleet:
    """All processes of a run. Messages of a process that nobody waits for yet are kept for later."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._processes: list[Process] = []
        self._waiting: dict[Process, list[control.Message]] = {}
        self._selector = selectors.DefaultSelector()

    def add(self, process: Process) -> None:
        self._processes.append(process)
        self._waiting[process] = []
        self._selector.register(process.channel, selectors.EVENT_READ, process)

    def of(self, role: str) -> list[Process]:
        return [process for process in self._processes if process.role == role]

    def send(self, processes: Iterable[Process], kind: str, **fields: object) -> None:
        """Send one message to each. Raises RunFailed if a process is gone."""
        for process in processes:
            self._send(process, kind, fields)

    def send_each(self, messages: Mapping[Process, Mapping[str, object]], kind: str) -> None:
        """Send each process its own fields. Raises RunFailed if a process is gone."""
        for process, fields in messages.items():
            self._send(process, kind, fields)

    def _send(self, process: Process, kind: str, fields: Mapping[str, object]) -> None:
        try:
            process.channel.send(kind, **fields)
        except OSError as error:
            raise self._death(process) from error

    def gather(self, processes: Iterable[Process], kind: str, timeout_s: float) -> dict[Process, control.Message]:
        """Wait for a message of one kind from each process.

        Raises RunFailed when a process reports an error, ends, or has not answered within `timeout_s`.
        """
        wanted = list(processes)
        answers: dict[Process, control.Message] = {}
        deadline = time.monotonic() + timeout_s
        while True:
            for process in wanted:
                if process not in answers:
                    message = self._take(process, kind)
                    if message is not None:
                        answers[process] = message
            if len(answers) == len(wanted):
                return answers
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                silent = ", ".join(process.name for process in wanted if process not in answers)
                raise RunFailed(f"no {kind!r} from {silent} within {timeout_s:.0f} s; see {self._log_dir}")
            for key, _ in self._selector.select(remaining):
                self._receive(key.data)

    def _take(self, process: Process, kind: str) -> control.Message | None:
        messages = self._waiting[process]
        for position, message in enumerate(messages):
            if message["type"] == kind:
                return messages.pop(position)
        return None

    def _receive(self, process: Process) -> None:
        message = process.channel.receive()
        if message is None:
            raise self._death(process)
        if message["type"] == "error":
            raise RunFailed(f"{process.name}: {message['message']}")
        self._waiting[process].append(message)

    def _death(self, process: Process) -> RunFailed:
        try:
            status = process.popen.wait(STOP_TIMEOUT_S)
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
        except subprocess.TimeoutExpired:
            how = "channel closed"
        return RunFailed(f"{process.name} ended in the middle of the run ({how}); see {self._log_dir}")

    def stop(self) -> None:
        """Ask every process to end, then make them. Safe to call twice."""
        for process in self._processes:
            with suppress(OSError):  # it may be gone already
                process.channel.send("stop")
            self._selector.unregister(process.channel)
            process.channel.close()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in self._processes:
            try:
                process.popen.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
        self._processes.clear()
        self._waiting.clear()
