"""Frames sent and received at the ends of links, with the kernel's receive stamps."""

import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.links.interface import Direction, DirectionCounters, Link, LinkEnd, RunningLinks
from testbed.links.veth import in_namespace

PROBE_TYPE = 0x88B5  # for local experiments
HEADER = struct.Struct("!6s6sHIQ")  # addresses, type, number, send time
SMALLEST, LARGEST = 60, 9014

_SO_TIMESTAMPNS = 35
_SO_RCVBUFFORCE = 33
_RECEIVE_BUFFER_BYTES = 128 << 20


class Node:
    """A network namespace, without IPv6 chatter, that lives until closed or until this process ends."""

    def __init__(self, name: str) -> None:
        self.name = name
        script = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6; echo ready; exec cat"
        self._process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def interfaces(self) -> set[str]:
        return {name for _, name in in_namespace(self.pid, socket.if_nameindex)} - {"lo"}

    def run(self, *command: str) -> str:
        inside = ["nsenter", "--net", "--target", str(self.pid), *command]
        return subprocess.run(inside, check=True, capture_output=True, text=True).stdout

    def open(self, act: Callable[[], socket.socket]) -> socket.socket:
        return in_namespace(self.pid, act)

    def close(self) -> None:
        self._process.communicate()


@dataclass(frozen=True)
class Received:
    number: int
    sent_ns: int
    received_ns: int
    frame: bytes


class Port:
    """A packet socket at a node's end of a link."""

    def __init__(self, node: Node, interface: str) -> None:
        def act() -> socket.socket:
            opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(PROBE_TYPE))
            opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
            opened.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            opened.bind((interface, PROBE_TYPE))
            return opened

        self.socket = node.open(act)

    def send(self, number: int, size: int = SMALLEST, filling: bytes = b"\0") -> None:
        header = HEADER.pack(b"\xff" * 6, b"\x02" * 6, PROBE_TYPE, number, time.time_ns())
        body = filling * (size // len(filling) + 1)
        self.socket.send(header + body[: size - HEADER.size])

    def receive(self, quiet_s: float, most: int | None = None) -> list[Received]:
        """What arrives until nothing has come for a while, or until there are `most` frames."""
        received: list[Received] = []
        self.socket.settimeout(quiet_s)
        while most is None or len(received) < most:
            try:
                frame, ancillary, _, _ = self.socket.recvmsg(LARGEST + 64, 256)
            except TimeoutError:
                break
            seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
            _, _, _, number, sent_ns = HEADER.unpack_from(frame)
            received.append(Received(number, sent_ns, seconds * 10**9 + nanoseconds, frame))
        return received

    def close(self) -> None:
        self.socket.close()


class Tap:
    """Sees what leaves an interface, stamped by the kernel: the sender's own stamp would add its own delays."""

    def __init__(self, node: Node, interface: str) -> None:
        def act() -> socket.socket:
            opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
            opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
            opened.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            opened.bind((interface, 3))
            opened.settimeout(0.2)
            return opened

        self._socket = node.open(act)

    def close(self) -> None:
        self._socket.close()

    def stamps(self) -> dict[int, int]:
        """When each probe left, by its number."""
        seen: dict[int, int] = {}
        while True:
            try:
                frame, ancillary, _, _ = self._socket.recvmsg(128, 256)
            except TimeoutError:
                return seen
            _, _, kind, number, _ = HEADER.unpack_from(frame)
            if kind == PROBE_TYPE:
                seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
                seen.setdefault(number, seconds * 10**9 + nanoseconds)


def direction(
    one_way_delay_ms: float = 0.0,
    rate_mbps: float = 1000.0,
    queue_bytes: int = 20_000_000,
    **others: Any,
) -> Direction:
    return Direction(round(one_way_delay_ms * 1e6), round(rate_mbps * 1e6), queue_bytes, **others)


def link(a: str, b: str, forward: Direction, backward: Direction | None = None) -> Link:
    return Link(f"{a}-{b}", LinkEnd(a, f"to-{b}"), LinkEnd(b, f"to-{a}"), forward, backward or forward)


def serialisation_ns(size: int, rate_mbps: float) -> int:
    """Whole nanoseconds: times since 1970 do not fit a float to that precision."""
    return round(size * 8000 / rate_mbps)


def send_in_thread(port: Port, count: int, size: int = SMALLEST, every_s: float = 0.0) -> threading.Thread:
    def act() -> None:
        for number in range(count):
            port.send(number, size)
            if every_s:
                time.sleep(every_s)

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def settled(running: RunningLinks, key: tuple[str, str], frames_in: int) -> DirectionCounters:
    """Counters once every frame is accounted for, or after ten seconds; the test judges them."""
    deadline = time.monotonic() + 10
    while True:
        counters = running.counters()[key]
        if (counters.frames_in >= frames_in and left(counters) == 0) or time.monotonic() > deadline:
            return counters
        time.sleep(0.01)


def left(counters: DirectionCounters) -> int:
    """Frames that came in and have neither gone out nor been dropped."""
    dropped = counters.dropped_queue + counters.dropped_loss + counters.dropped_down + counters.dropped_other
    return counters.frames_in + counters.duplicated - counters.frames_out - dropped


def delays_ns(received: Sequence[Received]) -> list[int]:
    return sorted(one.received_ns - one.sent_ns for one in received)


def until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
