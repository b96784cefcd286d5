"""Starts and stops the recorder program: frames of points of the network into pcapng files, one file a node."""

import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from testbed.capture.pcapng import Statistics, interface_description, interface_statistics, section_header
from testbed.capture.points import CapturePoint
from testbed.errors import RunFailed, TestbedError
from testbed.network.namespaces import entered
from testbed.run.processes import RUN_ID_VARIABLE

PROGRAM = Path(__file__).with_name("recorder")
_WHOLE_FRAME_BYTES = 65535

# An interface's ring: bytes of a block, and blocks. A block is handed over when it is full, or has been filled for
# 40 ms, so many small ones last longest: these are good for 3 s of a busy link's headers, or 900 whole frames of 9 KB.
_RING = 1 << 14, 128
_RING_WHOLE = 1 << 16, 128
_NICENESS = -10  # it takes little, but frames for which there is no room are lost
_HEADERS_BYTES = 512
_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 20.0
_MESSAGE_BYTES = 4096


@dataclass(frozen=True)
class PointCounts:
    """What was recorded at one point. Frames that the recording lost are not in its file."""

    point: CapturePoint
    arrived: int
    lost: int


@dataclass(frozen=True)
class Recorded:
    """A finished recording."""

    files: tuple[Path, ...]
    counts: tuple[PointCounts, ...]

    @property
    def frames(self) -> int:
        return sum(each.arrived - each.lost for each in self.counts)

    @property
    def lost(self) -> int:
        return sum(each.lost for each in self.counts)


class Recording:
    """Frames are recorded from the end of `__init__` to `stop`."""

    def __init__(
        self,
        points: Sequence[CapturePoint],
        pids: Mapping[str, int],
        files: Mapping[str, Path],
        snap_bytes: int,
        comment: str,
        run_id: str,
    ) -> None:
        """`files` has the new file of each node; 0 `snap_bytes` are whole frames; `comment` describes all files.

        Raises RunFailed.
        """
        snap_bytes = snap_bytes or _WHOLE_FRAME_BYTES
        self._points = sorted(points, key=lambda point: point.node)
        self._files = {node: files[node] for node in sorted({point.node for point in points})}
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_START_TIMEOUT_S)
        # Where a point's frames go: the number of its interface in its node's file.
        self._numbers: dict[CapturePoint, int] = {}
        with ExitStack() as opened:
            opened.enter_context(theirs)
            try:
                outputs = {
                    node: opened.enter_context(path.open("xb", buffering=0)) for node, path in self._files.items()
                }
                for node, output in outputs.items():
                    output.write(section_header("testbed", comment))
                    for number, point in enumerate(each for each in self._points if each.node == node):
                        output.write(interface_description(point.name, point.description, point.comment, snap_bytes))
                        self._numbers[point] = number
                sources = []
                for point in self._points:
                    with entered(pids[point.node]):
                        taps = opened.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
                    sources.append((outputs[point.node].fileno(), self._numbers[point], taps.fileno(), point.interface))
                ring = _RING if snap_bytes <= _HEADERS_BYTES else _RING_WHOLE
                self._process = subprocess.Popen(
                    [
                        PROGRAM,
                        str(theirs.fileno()),
                        *map(str, (snap_bytes, *ring)),
                        *(":".join(map(str, s)) for s in sources),
                    ],
                    pass_fds=[theirs.fileno(), *{source[0] for source in sources}, *(source[2] for source in sources)],
                    env={**os.environ, RUN_ID_VARIABLE: run_id},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                self._control.close()
                raise RunFailed(f"cannot start a recording: {error.strerror}; see --capture") from error
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICENESS)
        try:
            answer = self._receive()
            if answer != "ready":
                raise RunFailed(f"the recording did not start: {answer.removeprefix('error ')}")
        except RunFailed:
            self._end()
            raise
        self._start_ns = time.time_ns()

    def stop(self) -> Recorded:
        """Take in every frame that has arrived until now, and end. To be called once. Raises RunFailed."""
        end_ns = time.time_ns()
        self._control.settimeout(_STOP_TIMEOUT_S)
        with suppress(OSError):  # it has ended: that it does not answer is found next
            self._control.send(b"stop")
        try:
            answers = [_values(self._receive()) for _ in self._points]
        finally:
            self._end()
        counts = []
        unwritten = {point.node: answer["unwritten"] for point, answer in zip(self._points, answers, strict=True)}
        for point, answer in zip(self._points, answers, strict=True):
            # What a file could not hold is known for the file alone; it is told once.
            file_dropped = unwritten.pop(point.node, 0)
            arrived, kernel_dropped = answer["arrived"], answer["dropped"]
            ending = Statistics(self._numbers[point], self._start_ns, end_ns, arrived, kernel_dropped, file_dropped)
            with suppress(OSError), self._files[point.node].open("ab", buffering=0) as file:
                file.write(interface_statistics(ending))
            counts.append(PointCounts(point, arrived, kernel_dropped + file_dropped))
        return Recorded(tuple(self._files.values()), tuple(counts))

    def _receive(self) -> str:
        try:
            answer = self._control.recv(_MESSAGE_BYTES)
        except OSError as error:
            raise RunFailed(f"the recorder does not answer: {error}") from error
        if not answer:
            raise RunFailed("the recorder has ended; its files lack what it had not written")
        return answer.decode("utf-8", "replace")

    def _end(self) -> None:
        self._control.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def check_recorder() -> None:
    """Raise TestbedError unless the program is there."""
    if not os.access(PROGRAM, os.X_OK):
        raise TestbedError(
            f"--capture: {PROGRAM} is not built: run `python setup.py build_ext --inplace`, or provision again"
        )


def _values(answer: str) -> dict[str, int]:
    return {name: int(value) for name, value in (word.split("=") for word in answer.split())}
