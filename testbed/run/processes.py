"""The processes of a run and the talk with them (docs/run-control.md)."""

import heapq
import itertools
import os
import select
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from aggregator.wire import control
from testbed.errors import RunFailed
from testbed.run.supervision import Restart, Script

RUN_ID_VARIABLE = "TESTBED_RUN"
STOP_TIMEOUT_S = 3.0
RESTART_TIMEOUT_S = 10.0
MAX_RESTARTS = 5  # of one process in a run: one that dies over and over does not get better
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


class Child(Protocol):
    """What a run needs of a process that was started for it; a `subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...

    def wait(self, timeout: float) -> int:
        """The exit status; negative: of a signal. Raises subprocess.TimeoutExpired; RunFailed if nobody knows it."""

    def kill(self) -> None: ...


@dataclass(frozen=True)
class Process:
    """One process of a run: `role` is edge, dataplane or trainer; `host` is the number of a data plane's host."""

    role: str
    island: str
    child: Child = field(compare=False, hash=False)
    channel: control.Channel = field(compare=False, hash=False)
    host: int = 1

    @property
    def name(self) -> str:
        return process_name(self.role, self.island, self.host)


def process_name(role: str, island: str, host: int) -> str:
    """What a process is called in logs and messages."""
    return f"{role}-{island}" if host == 1 else f"{role}-{island}-h{host}"


@dataclass
class _Question:
    """What another thread than the loop has asked, and the answers so far."""

    messages: Mapping[Process, Mapping[str, object]]
    kind: str
    answer: str
    received: dict[Process, control.Message] = field(default_factory=dict)
    answers: "Future[dict[Process, control.Message]]" = field(default_factory=Future)


class Fleet:
    """All processes of a run. Messages of a process that nobody waits for yet are kept for later.

    A process that was added with `start_again` is supervised: when it ends it is started again and told all that its
    predecessor was told; what that had not answered is answered by its successor. A process is known by role, island
    and host, so either of the two stands for both.

    One thread, the loop, made the fleet and talks with its processes; other threads only `ask` and `wait`, and are
    served while the loop waits. Whoever wants to be called meanwhile, from the loop, registers with `call_at`.
    """

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._processes: list[Process] = []
        self._waiting: dict[Process, list[control.Message]] = {}
        self._selector = selectors.DefaultSelector()
        self._start_again: dict[Process, Callable[[], Process]] = {}
        self._scripts: dict[Process, Script] = {}
        self.restarts: list[Restart] = []
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._call_numbers = itertools.count()
        self._loop = threading.get_ident()
        self._asking = threading.Lock()
        self._asked: list[_Question] = []
        self._open: list[_Question] = []
        self._deaf = False
        self._wake = os.eventfd(0)
        self._selector.register(self._wake, selectors.EVENT_READ, self._take_questions)

    def add(self, process: Process, start_again: Callable[[], Process] | None = None) -> None:
        self._processes.append(process)
        if start_again is not None:
            self._start_again[process] = start_again
            self._scripts[process] = Script()
        self._waiting[process] = []
        self._selector.register(process.channel, selectors.EVENT_READ, process)

    def call_at(self, due_ns: int, callback: Callable[[], None]) -> None:
        """Call back once, not before this time of CLOCK_MONOTONIC."""
        heapq.heappush(self._calls, (due_ns, next(self._call_numbers), callback))

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
        process = self._present(process)
        if process in self._scripts:
            self._scripts[process].sent(kind, fields)
        try:
            process.channel.send(kind, **fields)
        except OSError:
            self._replace(process)

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
            self._wait(remaining)

    def ask(
        self, messages: Mapping[Process, Mapping[str, object]], kind: str, answer: str, timeout_s: float
    ) -> dict[Process, control.Message]:
        """Send each process its own fields and wait for one answer from each; from any thread. Raises RunFailed."""
        if threading.get_ident() == self._loop:
            self.send_each(messages, kind)
            return self.gather(messages, answer, timeout_s)
        question = _Question(messages, kind, answer)
        with self._asking:
            if self._deaf:
                raise RunFailed("the run has ended")
            self._asked.append(question)
            os.eventfd_write(self._wake, 1)
        try:
            return question.answers.result(timeout_s)
        except TimeoutError as error:
            raise RunFailed(f"not all processes gave an answer {answer!r} within {timeout_s:.0f} s") from error
        except CancelledError as error:
            raise RunFailed("the run has ended") from error

    def _take_questions(self) -> None:
        os.eventfd_read(self._wake)
        with self._asking:
            asked, self._asked = self._asked, []
        self._open += asked
        for question in asked:
            self.send_each(question.messages, question.kind)
        self._serve_questions()

    def refuse_questions(self) -> None:
        """The loop waits no more: threads that ask, or wait for answers, get RunFailed."""
        with self._asking:
            self._deaf = True
            for question in (*self._open, *self._asked):
                question.answers.cancel()
            self._open, self._asked = [], []

    def _serve_questions(self) -> None:
        """Give answers that have come to whoever has asked from another thread, in the order of asking."""
        for question in list(self._open):
            for process in question.messages.keys() - question.received.keys():
                message = self._take(process, question.answer)
                if message is not None:
                    question.received[process] = message
            if len(question.received) == len(question.messages):
                self._open.remove(question)
                question.answers.set_result(question.received)

    def wait(self, seconds: float) -> None:
        """Let time pass; the loop keeps messages and calls callbacks meanwhile. Raises RunFailed."""
        if threading.get_ident() != self._loop:
            time.sleep(seconds)
            return
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            self._wait(remaining)

    def _wait(self, at_most_s: float) -> None:
        """Until something happens: a message is kept, a callback called."""
        if self._calls:
            at_most_s = min(at_most_s, max(self._calls[0][0] - time.monotonic_ns(), 0) / 1e9)
        # One at a time: taking a message may start a process again, which ends the channel of its predecessor.
        for key, _ in self._selector.select(at_most_s)[:1]:
            if isinstance(key.data, Process):
                self._receive(key.data)
            else:
                key.data()
        while self._calls and self._calls[0][0] <= time.monotonic_ns():
            heapq.heappop(self._calls)[2]()

    def _take(self, process: Process, kind: str) -> control.Message | None:
        messages = self._waiting[process]
        for position, message in enumerate(messages):
            if message["type"] == kind:
                return messages.pop(position)
        return None

    def _receive(self, process: Process) -> None:
        message = process.channel.receive()
        if message is None:
            self._replace(process)
            return
        self._check(process, message)
        if process in self._scripts:
            self._scripts[process].received(message["type"])
        self._waiting[process].append(message)
        self._serve_questions()

    def _check(self, process: Process, message: control.Message) -> None:
        if message["type"] == "error":
            raise RunFailed(f"{process.name}: {message['message']}")

    def _present(self, process: Process) -> Process:
        """The living process of that name."""
        return self._processes[self._processes.index(process)]

    def _replace(self, ended: Process) -> None:
        """Start a supervised process again and bring it to where it was. Raises RunFailed if that cannot be done."""
        began = time.monotonic()
        script = self._scripts.get(ended)
        times = sum(restart.process == ended.name for restart in self.restarts)
        if script is None or not script.set_up or times == MAX_RESTARTS:
            self._hear_out(ended)
            raise RunFailed(f"{ended.name} ended in the middle of the run ({self._end_of(ended)}); see {self._log_dir}")
        how = self._end_of(ended)
        fresh = self._start_again[ended]()
        # Only now: whatever cannot be started again is still there to be stopped.
        self._selector.unregister(ended.channel)
        ended.channel.close()
        self._processes[self._processes.index(ended)] = fresh
        self._selector.register(fresh.channel, selectors.EVENT_READ, fresh)
        for request in list(script.requests):
            answer = self._ask(fresh, request.kind, request.fields)
            if answer["type"] == request.answer and not request.answered:
                script.received(answer["type"])
                self._waiting[fresh].append(answer)
        self.restarts.append(Restart(ended.name, how, time.monotonic() - began))
        self._serve_questions()

    def _hear_out(self, ended: Process) -> None:
        """Raise RunFailed with the error that a process has sent before it ended, if it has sent one."""
        ends = 0  # what it has not read itself is told first, as an end, and then comes what it has sent
        while ends < 2 and select.select([ended.channel], [], [], 0)[0]:
            message = ended.channel.receive()
            if message is None:
                ends += 1
            else:
                self._check(ended, message)

    def _ask(self, process: Process, kind: str, fields: Mapping[str, object]) -> control.Message:
        answer = None
        with suppress(OSError):
            process.channel.send(kind, **fields)
            if select.select([process.channel], [], [], RESTART_TIMEOUT_S)[0]:
                answer = process.channel.receive()
        if answer is None:
            raise RunFailed(f"{process.name} could not be started again; see {self._log_dir}")
        self._check(process, answer)
        return answer

    def _end_of(self, process: Process) -> str:
        try:
            status = process.child.wait(STOP_TIMEOUT_S)
            return f"signal {-status}" if status < 0 else f"exit status {status}"
        except subprocess.TimeoutExpired:
            return "channel closed"

    def stop(self) -> None:
        """Ask every process to end, then make them. Other threads ask no more. Safe to call twice."""
        self.refuse_questions()
        if self._wake >= 0:
            self._selector.unregister(self._wake)
            os.close(self._wake)
            self._wake = -1
        for process in self._processes:
            with suppress(OSError):  # it may be gone already
                process.channel.send("stop")
            self._selector.unregister(process.channel)
            process.channel.close()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in self._processes:
            with suppress(RunFailed):  # it has ended, nobody knows how
                try:
                    process.child.wait(max(deadline - time.monotonic(), 0))
                except subprocess.TimeoutExpired:
                    process.child.kill()
                    process.child.wait(STOP_TIMEOUT_S)
        self._processes.clear()
        self._waiting.clear()
