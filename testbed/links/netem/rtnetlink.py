"""Traffic control over netlink: requests and replies, as bytes.

Not through pyroute2's classes for traffic control: they cut delays to microseconds and take text where a kernel field
has a number, and what a link becomes is compared field by field.
"""

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

NEW_QDISC, GET_QDISC = 36, 38
NEW_FILTER, GET_FILTER = 44, 46
NEW_ACTION = 48

REQUEST, ACKNOWLEDGE, REPLACE, CREATE, DUMP = 0x1, 0x4, 0x100, 0x400, 0x300

_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
_SUBJECT = struct.Struct("=B3xiIII")  # family, interface, handle, parent, info
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_NESTED = 0x8000
_TYPE_MASK = 0x3FFF
_SOL_NETLINK, _EXTENDED_ACKNOWLEDGE = 270, 11
_ERROR_TEXT = 1
_CAPPED = 0x100
_ANSWER_LIMIT_S = 30


class KernelRefusal(Exception):
    """The kernel refused a request; the message is the kernel's own where it gives one."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text or os.strerror(code))
        self.code = code


@dataclass(frozen=True)
class Reply:
    """One object of the kernel's: its place, and its attributes by type."""

    interface: int
    handle: int
    parent: int
    attributes: dict[int, bytes]


def attribute(kind: int, value: bytes) -> bytes:
    """An attribute, padded to where the next one may start."""
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + b"\0" * (-length % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """An attribute that holds attributes."""
    return attribute(kind | _NESTED, b"".join(attributes))


def parse(data: bytes) -> dict[int, bytes]:
    """Attributes by type."""
    found = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _TYPE_MASK] = data[at + _ATTRIBUTE.size : at + length]
        at += length + -length % 4
    return found


class TrafficControl:
    """A netlink socket of the network namespace in which it was made."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        self._socket.setsockopt(_SOL_NETLINK, _EXTENDED_ACKNOWLEDGE, 1)
        self._socket.settimeout(_ANSWER_LIMIT_S)
        self._socket.bind((0, 0))
        self._sequence = 0

    def __enter__(self) -> "TrafficControl":
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def set(self, kind: int, interface: int, parent: int, handle: int, info: int, *attributes: bytes) -> None:
        """Make or replace a queueing discipline or a filter. Raises KernelRefusal."""
        subject = _SUBJECT.pack(0, interface, handle, parent, info)
        self._ask(kind, ACKNOWLEDGE | CREATE | REPLACE, subject + b"".join(attributes))

    def replace_action(self, *attributes: bytes) -> None:
        """Change actions that are there, by their numbers, wherever they are in use. Raises KernelRefusal."""
        self._ask(NEW_ACTION, ACKNOWLEDGE | REPLACE, b"\0" * 4 + b"".join(attributes))

    def get(self, kind: int, interface: int = 0, parent: int = 0) -> list[Reply]:
        """All queueing disciplines, or the filters of one place. Raises KernelRefusal."""
        replies = []
        for body in self._ask(kind, DUMP, _SUBJECT.pack(0, interface, 0, parent, 0)):
            _, index, handle, above, _ = _SUBJECT.unpack_from(body)
            replies.append(Reply(index, handle, above, parse(body[_SUBJECT.size :])))
        return replies

    def _ask(self, kind: int, flags: int, body: bytes) -> list[bytes]:
        self._sequence += 1
        length = _HEADER.size + len(body)
        self._socket.send(_HEADER.pack(length, kind, REQUEST | flags, self._sequence, 0) + body)
        bodies: list[bytes] = []
        while True:
            for answer, answer_flags, content in self._receive():
                if answer == _ERROR:
                    _raise_if_refused(content, answer_flags)
                    return bodies
                if answer == _DONE:
                    return bodies
                bodies.append(content)

    def _receive(self) -> Iterator[tuple[int, int, bytes]]:
        data = self._socket.recv(1 << 18)
        at = 0
        while at + _HEADER.size <= len(data):
            length, kind, flags, sequence, _ = _HEADER.unpack_from(data, at)
            if sequence == self._sequence:
                yield kind, flags, data[at + _HEADER.size : at + length]
            at += length + -length % 4


def _raise_if_refused(content: bytes, flags: int) -> None:
    (code,) = struct.unpack_from("=i", content)
    if code == 0:
        return
    # The request comes back, whole unless it was capped, and then what the kernel has to say.
    (request_length,) = struct.unpack_from("=I", content, 4)
    at = 4 + (_HEADER.size if flags & _CAPPED else request_length + -request_length % 4)
    text = parse(content[at:]).get(_ERROR_TEXT, b"").rstrip(b"\0").decode(errors="replace")
    raise KernelRefusal(-code, text)
