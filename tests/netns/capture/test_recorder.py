"""The recorder takes in every frame, or says how many it lacks."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from testbed.analyze.files import INBOUND, OUTBOUND, CaptureFile
from testbed.capture.points import CapturePoint
from testbed.capture.recorder.recording import PROGRAM, Recording
from testbed.errors import RunFailed
from testbed.links.interface import LinkEnd
from testbed.links.veth import PairEnd, bring_up, make_pairs
from testbed.network.namespaces import entered, write_sysctls

WAIT_S = 10.0
FRAME_BYTES = 9014
PAUSE_EVERY = 50
POINTS = [
    CapturePoint("a", "to-b", "a-b", "core", LinkEnd("b", "to-a")),
    CapturePoint("b", "to-a", "a-b", "core", LinkEnd("a", "to-b")),
]


@dataclass(frozen=True)
class Pair:
    """Two nodes, joined by a pair of interfaces."""

    pids: dict[str, int]

    def send(self, count: int, frame_bytes: int = FRAME_BYTES) -> list[int]:
        """Send numbered frames from a to b; returns the numbers of those that came to b."""
        with entered(self.pids["a"]):
            sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        came = []
        with sender:
            sender.bind(("to-b", 0))
            for number in range(count):
                frame = bytes(12) + b"\x88\xb5" + number.to_bytes(4, "big")
                with suppress(OSError):  # b's queue is full: the frame has left a, and b never saw it
                    sender.send(frame.ljust(frame_bytes, b"\0"))
                    came.append(number)
                if number % PAUSE_EVERY == 0:
                    time.sleep(0.001)
        return came


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    own = os.readlink("/proc/self/ns/net")
    keepers = {node: subprocess.Popen(["unshare", "--net", "sleep", "600"]) for node in "ab"}
    try:
        pids = {node: keeper.pid for node, keeper in keepers.items()}
        deadline = time.monotonic() + WAIT_S
        while any(os.readlink(f"/proc/{pid}/ns/net") == own for pid in pids.values()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for pid in pids.values():
            with entered(pid):
                # Nothing but what the tests send.
                write_sysctls({"ipv6.conf.all.disable_ipv6": "1", "ipv6.conf.default.disable_ipv6": "1"})
        make_pairs([(PairEnd("to-b", pids["a"]), PairEnd("to-a", pids["b"]))])
        bring_up(pids["a"], ["to-b"])
        bring_up(pids["b"], ["to-a"])
        yield Pair(pids)
    finally:
        for keeper in keepers.values():
            keeper.kill()
            keeper.wait()


def record(pair: Pair, directory: Path, snap_bytes: int) -> Recording:
    files = {node: directory / f"{node}.pcapng" for node in "ab"}
    return Recording(POINTS, pair.pids, files, snap_bytes, "testbed", "test")


def recorder_of(recording: Recording) -> int:
    """The process of a recording: the one that holds our end's peer."""
    children = subprocess.run(
        ["pgrep", "--parent", str(os.getpid()), "--full", str(PROGRAM)], capture_output=True, text=True, check=True
    )
    return int(children.stdout.split()[-1])


def numbers(path: Path, interface: int, direction: int) -> list[int]:
    """The numbers of our frames in a file, in order."""
    found: list[int] = []
    for frames in CaptureFile(path).frames(1 << 20):
        chosen = (frames.interface == interface) & (frames.direction == direction) & (frames.length > 1000)
        for at in frames.at[chosen].tolist():
            found.append(int.from_bytes(frames.buffer[at + 14 : at + 18].tobytes(), "big"))
        assert (np.diff(frames.time_ns[chosen]) >= 0).all()
    return found


@pytest.mark.parametrize("snap_bytes", [128, 0])
def test_a_burst_right_before_the_end_is_there(pair: Pair, tmp_path: Path, snap_bytes: int) -> None:
    recording = record(pair, tmp_path, snap_bytes)
    began_ns = time.time_ns()
    came = pair.send(600)
    recorded = recording.stop()
    assert recorded.lost == 0
    assert numbers(tmp_path / "a.pcapng", 0, OUTBOUND) == list(range(600))
    assert numbers(tmp_path / "b.pcapng", 0, INBOUND) == came
    file = CaptureFile(tmp_path / "b.pcapng")
    file.read_interfaces()
    file.read_ends()
    interface = file.interfaces[0]
    assert interface.name == "b:to-a"
    assert interface.comment == "testbed node=b interface=to-a link=a-b kind=core peer=a:to-b"
    assert interface.lost == 0
    assert interface.start_ns is not None
    assert interface.end_ns is not None
    assert interface.start_ns <= began_ns < interface.end_ns
    captured = next(file.frames(1 << 16)).captured
    assert captured.max() == (snap_bytes or FRAME_BYTES)


def test_frames_for_which_there_is_no_room_are_counted(pair: Pair, tmp_path: Path) -> None:
    recording = record(pair, tmp_path, 0)
    recorder = recorder_of(recording)
    os.kill(recorder, signal.SIGSTOP)
    came = pair.send(2000)  # twice what the ring of an interface holds
    os.kill(recorder, signal.SIGCONT)
    recorded = recording.stop()
    for counts in recorded.counts:
        there = numbers(tmp_path / f"{counts.point.node}.pcapng", 0, OUTBOUND if counts.point.node == "a" else INBOUND)
        assert counts.lost > 0
        assert len(there) + counts.lost == counts.arrived == (2000 if counts.point.node == "a" else len(came))
        file = CaptureFile(tmp_path / f"{counts.point.node}.pcapng")
        file.read_interfaces()
        file.read_ends()
        assert file.interfaces[0].lost == counts.lost


def test_what_a_full_disk_cannot_hold_is_counted_and_the_file_stays_whole(pair: Pair, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)], check=True)
    try:
        recording = record(pair, tmp_path, 0)
        came = pair.send(400)  # 3.6 MB at each end
        recorded = recording.stop()
        assert recorded.lost > 0
        for counts in recorded.counts:
            path = tmp_path / f"{counts.point.node}.pcapng"
            there = numbers(path, 0, OUTBOUND if counts.point.node == "a" else INBOUND)
            all_of_them = list(range(400)) if counts.point.node == "a" else came
            assert there == all_of_them[: len(there)]
            assert len(there) + counts.lost == len(all_of_them)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_an_interface_that_is_not_there(pair: Pair, tmp_path: Path) -> None:
    wrong = CapturePoint("a", "no-such", "a-b", "core", LinkEnd("b", "to-a"))
    with pytest.raises(RunFailed, match="interface no-such: cannot bind: No such device"):
        Recording([wrong], pair.pids, {"a": tmp_path / "a.pcapng"}, 128, "testbed", "test")


def test_a_recorder_that_is_killed_is_told(pair: Pair, tmp_path: Path) -> None:
    recording = record(pair, tmp_path, 128)
    os.kill(recorder_of(recording), signal.SIGKILL)
    with pytest.raises(RunFailed, match="recorder has ended"):
        recording.stop()
