"""Starts the processes of a run by forking: one process imports what all of them need, once.

An interpreter with numpy takes a good second to start on a slow machine, and holds some 30 MB; a fork of one takes
milliseconds, and shares them. The nursery runs in the pinned environment and has one thread, so that its children are
what a command would have started; none of them sees the others' files or numbers. It ends with the run, and they with
it.

    python -m testbed.run.nursery --control-fd N

Messages are JSON over a Unix SOCK_SEQPACKET socket. First `preload` {modules}; then `spawn` {child, name, module,
urgent} with the files that the child gets (control socket, log, and maybe a network namespace), answered by `spawned`
{child, pid} with a pidfd. `ended` {child, status} tells of the end of a child, whenever it comes.
"""

import argparse
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggregator.wire import control
from testbed.errors import RunFailed
from testbed.network.namespaces import enter
from testbed.run import forked
from testbed.run.processes import Process, pinned_environment, process_name, python_command

_LOADING_TIMEOUT_S = 120.0  # undilated: on an emulated processor the modules take ten seconds
_STATUS_TIMEOUT_S = 3.0
_STOP_TIMEOUT_S = 3.0
_MESSAGE_BYTES = 1 << 16
_MOST_FILES = 3


class Nursery:
    """The run's end. Used by one thread, which the nursery ends with."""

    def __init__(self, run_id: str, log_dir: Path, modules: Sequence[str]) -> None:
        """Start it; on return it is loading `modules`, which it does not wait for. Raises OSError."""
        self._log_dir = log_dir
        self._children = 0
        self._pidfds: dict[int, int] = {}
        self._statuses: dict[int, int] = {}
        self._gone = False
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = python_command(__name__, "--control-fd", str(theirs.fileno()))
        with theirs, (log_dir / "nursery.log").open("ab") as log:
            self._popen = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=pinned_environment(run_id),
                start_new_session=True,
            )
        self._send({"type": "preload", "modules": list(modules)})

    def spawn(self, role: str, module: str, island: str, namespace_pid: int | None, host: int = 1) -> Process:
        """Start a process of the run, in the network namespace of process `namespace_pid` if given.

        It runs the module's `main`, dies with the nursery, whatever becomes of that, and is no target of the
        terminal's interrupts. Raises RunFailed if its node or the nursery is gone.
        """
        name = process_name(role, island, host)
        self._children += 1
        number = self._children
        # One that is started again in the middle of a round must not wait for the training.
        order = {"child": number, "name": name, "module": module, "urgent": role == "edge"}
        with ExitStack() as files:
            try:
                log = files.enter_context((self._log_dir / f"{name}.log").open("ab"))
                opened = [log.fileno()]
                if namespace_pid is not None:
                    opened.append(files.enter_context(open(f"/proc/{namespace_pid}/ns/net", "rb")).fileno())
            except OSError as error:
                raise RunFailed(f"{name} cannot be started: {error}") from error
            ours, theirs = control.pair()
            files.callback(theirs.close)
            self._send({"type": "spawn", **order}, [theirs.fileno(), *opened])
        deadline = time.monotonic() + _LOADING_TIMEOUT_S
        while True:
            message, received = self._receive(deadline)
            if message["type"] == "spawned":
                [self._pidfds[number]] = received
                return Process(role, island, Child(message["pid"], number, self), ours, host)

    def wait(self, number: int, timeout: float) -> int:
        """The exit status of a child; negative: of a signal.

        Raises subprocess.TimeoutExpired; RunFailed if the nursery is gone, or does not say.
        """
        if number not in self._statuses:
            # The child's end is seen here, whatever the nursery is doing.
            if not _readable(self._pidfds[number], timeout):
                raise subprocess.TimeoutExpired("a process of the run", timeout)
            deadline = time.monotonic() + _STATUS_TIMEOUT_S
            while number not in self._statuses:
                self._receive(deadline)
        return self._statuses[number]

    def kill(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfds[number], signal.SIGKILL)

    def close(self) -> None:
        """End it, and with it the children that are left. Safe to call twice."""
        self._socket.close()
        self._gone = True
        try:
            self._popen.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        while self._pidfds:
            os.close(self._pidfds.popitem()[1])

    def _send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        if self._gone:
            raise self._failure()
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], list(descriptors))
        except OSError as error:
            raise self._failure() from error

    def _receive(self, deadline: float) -> tuple[dict[str, Any], list[int]]:
        """The next message; statuses in it are noted."""
        if self._gone or not _readable(self._socket.fileno(), deadline - time.monotonic()):
            raise self._failure()
        message, descriptors = _receive(self._socket)
        if message is None:
            raise self._failure()
        if message["type"] == "ended":
            self._statuses[message["child"]] = message["status"]
        return message, descriptors

    def _failure(self) -> RunFailed:
        self._gone = True
        how = "it does not answer"
        with suppress(subprocess.TimeoutExpired):
            status = self._popen.wait(0.1)
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return RunFailed(f"the nursery, which starts the run's processes, ended ({how}); see {self._log_dir}")


@dataclass(frozen=True)
class Child:
    """A process that the nursery has started."""

    pid: int
    _number: int
    _nursery: Nursery

    def wait(self, timeout: float) -> int:
        return self._nursery.wait(self._number, timeout)

    def kill(self) -> None:
        self._nursery.kill(self._number)


def _readable(descriptor: int, timeout_s: float) -> bool:
    """Whether something is there to read, or comes in time."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(timeout_s, 0) * 1e3))


def _receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """One message, None at the end of the channel, and the files that came with it."""
    try:
        data, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, _MOST_FILES, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return None, []
    return (json.loads(data) if data else None), descriptors


def _serve(run: socket.socket) -> int:
    """Fork what the run asks for, until it is gone. Returns, in a child, when that is done; the exit status."""
    poll = select.poll()
    poll.register(run, select.POLLIN)
    children: dict[int, tuple[int, int]] = {}  # number and pid, by pidfd
    while True:
        for ready, _ in poll.poll():
            if ready != run.fileno():
                number, pid = children.pop(ready)
                poll.unregister(ready)
                os.close(ready)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                answer, files = {"type": "ended", "child": number, "status": status}, []
            else:
                order, descriptors = _receive(run)
                if order is None:
                    return 0
                nursery = os.getpid()
                pid = os.fork()
                if pid == 0:
                    run.close()
                    for pidfd in children:
                        os.close(pidfd)
                    return _live(order, descriptors, nursery)
                for descriptor in descriptors:
                    os.close(descriptor)
                pidfd = os.pidfd_open(pid)
                children[pidfd] = order["child"], pid
                poll.register(pidfd, select.POLLIN)
                answer, files = {"type": "spawned", "child": order["child"], "pid": pid}, [pidfd]
            try:
                socket.send_fds(run, [json.dumps(answer).encode()], files)
            except OSError:
                return 0


def _live(order: dict[str, Any], descriptors: Sequence[int], nursery: int) -> int:
    """In a child: be the process that is asked for, until it ends; its exit status."""
    control_fd, log, *namespace = descriptors
    os.setsid()
    forked.end_with_parent(nursery)
    if order["urgent"]:
        forked.become_urgent()
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    os.close(log)
    for descriptor in namespace:
        enter(descriptor)
        os.close(descriptor)
    command = python_command(order["module"], "--control-fd", str(control_fd))
    forked.set_title(order["name"], command)
    forked.draw_own_numbers()
    module = importlib.import_module(order["module"])
    sys.argv = [str(module.__file__), *command[-2:]]
    status: int = module.main()
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description="Starts the processes of a run, which starts it.")
    parser.add_argument("--control-fd", type=int, required=True, metavar="N", help="inherited socket")
    run = socket.socket(fileno=parser.parse_args().control_fd)
    preload, _ = _receive(run)
    if preload is None:
        return 0
    for module in preload["modules"]:
        importlib.import_module(module)
    # What is there now is there in every child: the collector must not touch, and so copy, it.
    gc.collect()
    gc.freeze()
    return _serve(run)


if __name__ == "__main__":
    sys.exit(main())
