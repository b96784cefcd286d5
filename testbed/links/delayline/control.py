"""Talks to the delayline program: one command per message, one answer, in the text protocol of control.h."""

import os
import socket
import subprocess
import threading
from pathlib import Path

from testbed.links.interface import LinkError

PROGRAM = Path(__file__).with_name("delayline")

_ANSWER_BYTES = 16384
_ANSWER_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 20.0


class Control:
    """The running program and the socket to it."""

    def __init__(self, run_id: str) -> None:
        """Start the program, marked as the run's; it then waits in a network namespace of its own."""
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_ANSWER_TIMEOUT_S)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [PROGRAM, str(theirs.fileno()), str(os.getpid())],
                    pass_fds=(theirs.fileno(),),
                    env={**os.environ, "TESTBED_RUN": run_id},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is for the run, which then closes its links
                    cwd="/",
                )
            except OSError as error:
                self._socket.close()
                raise LinkError(f"cannot start {PROGRAM}: {error.strerror}; build it again") from error
        try:
            self._expect_ok(self._receive())
        except LinkError:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """The program's process id, and so the way into its network namespace."""
        return self._process.pid

    def ask(self, command: str) -> dict[str, str]:
        """Send a command and return the values of its answer. Raises LinkError with the program's reason."""
        with self._lock:
            self._send(command)
            return self._expect_ok(self._receive())

    def ask_rows(self, command: str, row: str) -> list[dict[str, str]]:
        """Send a command that is answered by messages beginning with `row`, then "ok"; return their values."""
        rows = []
        with self._lock:
            self._send(command)
            answer = self._receive()
            while answer.startswith(row + " "):
                rows.append(_values(answer))
                answer = self._receive()
            self._expect_ok(answer)
        return rows

    def stop(self) -> None:
        """End the program; its interfaces, and so the links, go with it. Safe to call twice."""
        with self._lock:
            if self._socket.fileno() < 0:
                return
            try:
                self._socket.send(b"stop")
                self._socket.recv(_ANSWER_BYTES)
            except OSError:
                pass  # it has ended, or will be made to
            self._socket.close()
            self._reap(_STOP_TIMEOUT_S)

    def _send(self, command: str) -> None:
        try:
            self._socket.send(command.encode("ascii"))
        except OSError as error:
            raise self._gone() from error

    def _receive(self) -> str:
        try:
            answer = self._socket.recv(_ANSWER_BYTES)
        except TimeoutError as error:
            raise LinkError("the delayline program does not answer: the machine is too busy for these links") from error
        except OSError as error:
            raise self._gone() from error
        if not answer:
            raise self._gone()
        return answer.decode("ascii", "replace")

    def _gone(self) -> LinkError:
        if self._socket.fileno() < 0:
            return LinkError("the links are closed")
        return LinkError(f"the delayline program ended: {self._reap(1.0) or 'no reason given'}")

    def _reap(self, timeout_s: float) -> str:
        """Wait for the program, kill it if it does not end, and return what it said on standard error."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        pipe = self._process.stderr
        if pipe is None or pipe.closed:
            return ""
        with pipe:
            said: bytes = pipe.read()
        return said.decode("utf-8", "replace").strip()

    @staticmethod
    def _expect_ok(answer: str) -> dict[str, str]:
        if answer == "ok" or answer.startswith("ok "):
            return _values(answer)
        raise LinkError(answer.removeprefix("error "))


def _values(answer: str) -> dict[str, str]:
    """The name=value words of an answer."""
    return dict(word.split("=", 1) for word in answer.split(" ")[1:])
