"""Packet sockets at the ends of links: numbered probe frames out, kernel receive stamps in.

Frames are stamped by the kernel on arrival, so that reading them late is no error. They go to the address of LLDP,
which no bridge forwards, and are told from all other traffic by a random tag.
"""

import ctypes
import secrets
import socket
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from testbed.links.interface import Link, LinkEnd, LinkError
from testbed.network.namespaces import entered

SMALLEST_FRAME = 60

_DESTINATION = bytes.fromhex("0180c200000e")
_SOURCE = bytes.fromhex("020000000001")
_ETHERTYPE = 0x88B5  # for local experiments
_HEAD = struct.Struct("!6s6sH8sIq")  # addresses, type, tag, number, time of sending
_CHECK = struct.Struct("!I")
_HEAD_BYTES = _HEAD.size + _CHECK.size
_LONGEST_PADDING = bytes(1 << 16)
_REST = bytes(SMALLEST_FRAME - _HEAD_BYTES)
_STAMP = struct.Struct("qq")

_ETH_P_ALL = 3
_SO_TIMESTAMPNS = 35
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_SOL_PACKET, _PACKET_IGNORE_OUTGOING = 263, 23
_BUFFER_BYTES = 64 << 20

_libc = ctypes.CDLL(None, use_errno=True)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Message(ctypes.Structure):
    """struct msghdr."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("vectors", ctypes.c_void_p),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _BatchMessage(ctypes.Structure):
    """struct mmsghdr."""

    _fields_ = (("message", _Message), ("sent", ctypes.c_uint))


@dataclass(frozen=True)
class Arrival:
    """A probe frame as it arrived; times are of the wall clock, which also the kernel stamps with."""

    number: int
    sent_ns: int
    arrived_ns: int


class Port:
    """One end of a link. `corrupted` counts arrivals whose content had changed."""

    def __init__(self, end: LinkEnd, pid: int) -> None:
        """Open a packet socket on the interface, in the namespace of process `pid`. Raises LinkError."""
        self.corrupted = 0
        self._tag = secrets.token_bytes(8)
        try:
            with entered(pid):
                self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
                for level, name, value in (
                    (socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER_BYTES),
                    (socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES),
                    (socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1),
                    (_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1),
                ):
                    self._socket.setsockopt(level, name, value)
                # All types of frames: a bridge takes its ports' frames before sockets that want one type only.
                self._socket.bind((end.interface, _ETH_P_ALL))
        except OSError as error:
            raise LinkError(f"cannot send probes at {end.node}, interface {end.interface}: {error.strerror}") from error

    def close(self) -> None:
        self._socket.close()

    def send(self, number: int, size: int = SMALLEST_FRAME) -> None:
        """Send one frame of `size` bytes, stamped with the present. One that the interface does not take is lost."""
        head = _head(self._tag, number, time.time_ns())
        with suppress(OSError):
            self._socket.send(head + _LONGEST_PADDING[: size - len(head)])

    def prepare(self, count: int, size: int) -> "Frames":
        """Make `count` numbered frames of `size` bytes, to be sent as fast as this machine can."""
        return Frames(self._socket.fileno(), b"".join(_head(self._tag, number, 0) for number in range(count)), size)

    def received_from(self, other: "Port") -> list[Arrival]:
        """The probes of the port at the other end that have arrived by now, in the order of arrival."""
        arrivals: list[Arrival] = []
        while True:
            try:
                frame, ancillary, _, _ = self._socket.recvmsg(SMALLEST_FRAME, 64, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return arrivals
            if len(frame) < SMALLEST_FRAME:
                continue
            _, _, ethertype, tag, number, sent_ns = _HEAD.unpack_from(frame)
            if tag != other._tag and ethertype != _ETHERTYPE:
                continue  # other traffic
            # One flipped bit cannot hide both marks, nor the check.
            if frame[_HEAD.size :] != _CHECK.pack(zlib.crc32(frame[: _HEAD.size])) + _REST:
                self.corrupted += 1
                continue
            seconds, nanoseconds = _STAMP.unpack(ancillary[0][2])
            arrivals.append(Arrival(number, sent_ns, seconds * 1_000_000_000 + nanoseconds))


class Frames:
    """Frames ready to be sent: each its own head, all the same padding."""

    def __init__(self, fd: int, heads: bytes, size: int) -> None:
        self.count = len(heads) // _HEAD_BYTES
        self._fd = fd
        self._heads = ctypes.create_string_buffer(heads, len(heads))
        self._padding = ctypes.create_string_buffer(max(size - _HEAD_BYTES, 1))
        self._vectors = (_Vector * (2 * self.count))()
        self._messages = (_BatchMessage * self.count)()
        for n in range(self.count):
            self._vectors[2 * n] = _Vector(ctypes.addressof(self._heads) + n * _HEAD_BYTES, _HEAD_BYTES)
            self._vectors[2 * n + 1] = _Vector(ctypes.addressof(self._padding), size - _HEAD_BYTES)
            self._messages[n].message.vectors = ctypes.addressof(self._vectors) + 2 * n * ctypes.sizeof(_Vector)
            self._messages[n].message.vector_count = 2

    def send(self, first: int, end: int) -> None:
        """Send frames `first` up to `end`. What the interface does not take is lost."""
        while first < end:
            first += max(_libc.sendmmsg(self._fd, ctypes.byref(self._messages[first]), end - first, 0), 1)


def _head(tag: bytes, number: int, sent_ns: int) -> bytes:
    head = _HEAD.pack(_DESTINATION, _SOURCE, _ETHERTYPE, tag, number, sent_ns)
    return head + _CHECK.pack(zlib.crc32(head))


class Ports:
    """A port at every end of some links; use as a context manager."""

    def __init__(self, links: Sequence[Link], pids: Mapping[str, int]) -> None:
        """`pids` maps each node to a process in its namespace. Raises LinkError."""
        self._ports: list[tuple[Port, Port]] = []
        try:
            for link in links:
                self._ports.append((Port(link.a, pids[link.a.node]), Port(link.b, pids[link.b.node])))
        except BaseException:
            self.close()
            raise

    def of(self, direction: int) -> tuple[Port, Port]:
        """Sender and receiver of a direction: link n has 2n, from a to b, and 2n + 1."""
        a, b = self._ports[direction // 2]
        return (b, a) if direction % 2 else (a, b)

    def close(self) -> None:
        """Close all ports: side by side, since each waits 10 ms and more for the kernel."""
        ports = [port for pair in self._ports for port in pair]
        with ThreadPoolExecutor(max(len(ports), 1)) as pool:
            list(pool.map(Port.close, ports))

    def __enter__(self) -> "Ports":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
