"""The blocks of a pcapng file, as they are written."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

_SECTION_BLOCK, _INTERFACE_BLOCK, _STATISTICS_BLOCK, _PACKET_BLOCK = 0x0A0D0D0A, 1, 5, 6
_BYTE_ORDER_MAGIC = 0x1A2B3C4D
_LINKTYPE_ETHERNET = 1
_COMMENT, _USER_APPLICATION = 1, 4
_IF_NAME, _IF_DESCRIPTION, _IF_TSRESOL = 2, 3, 9
_ISB_START, _ISB_END, _ISB_ARRIVED, _ISB_FILE_DROPPED, _ISB_KERNEL_DROPPED = 2, 3, 4, 5, 7
_EPB_FLAGS, _INBOUND, _OUTBOUND = 2, 1, 2
_NANOSECONDS = 9

Options = Sequence[tuple[int, bytes]]


@dataclass(frozen=True)
class Statistics:
    """The end of an interface's recording. All frames between `start_ns` and `end_ns` (wall clock) arrived or were
    dropped: by the kernel, or on the way to the file."""

    interface: int
    start_ns: int
    end_ns: int
    arrived: int
    kernel_dropped: int
    file_dropped: int


def section_header(application: str, comment: str) -> bytes:
    """The block that a file begins with."""
    body = struct.pack("<IHHq", _BYTE_ORDER_MAGIC, 1, 0, -1)
    return _block(
        _SECTION_BLOCK, body, [(_USER_APPLICATION, application.encode()), (_COMMENT, comment.encode("utf-8"))]
    )


def interface_description(name: str, description: str, comment: str, snap_bytes: int) -> bytes:
    """The block that introduces an Ethernet interface with nanosecond times; it is numbered by its position."""
    options = [
        (_IF_NAME, name.encode()),
        (_IF_DESCRIPTION, description.encode()),
        (_IF_TSRESOL, bytes([_NANOSECONDS])),
        (_COMMENT, comment.encode()),
    ]
    return _block(_INTERFACE_BLOCK, struct.pack("<HHI", _LINKTYPE_ETHERNET, 0, snap_bytes), options)


def packet(interface: int, time_ns: int, data: bytes, frame_bytes: int, outbound: bool) -> bytes:
    """The block of one frame, of which `data` was captured."""
    fixed = struct.pack("<IIIII", interface, time_ns >> 32, time_ns & 0xFFFFFFFF, len(data), frame_bytes)
    flags = struct.pack("<I", _OUTBOUND if outbound else _INBOUND)
    return _block(_PACKET_BLOCK, fixed + _padded(data), [(_EPB_FLAGS, flags)])


def interface_statistics(counts: Statistics) -> bytes:
    """The block with an interface's counts."""
    options = [
        (_ISB_START, _time(counts.start_ns)),
        (_ISB_END, _time(counts.end_ns)),
        (_ISB_ARRIVED, struct.pack("<Q", counts.arrived)),
        (_ISB_FILE_DROPPED, struct.pack("<Q", counts.file_dropped)),
        (_ISB_KERNEL_DROPPED, struct.pack("<Q", counts.kernel_dropped)),
    ]
    return _block(_STATISTICS_BLOCK, struct.pack("<I", counts.interface) + _time(counts.end_ns), options)


def _time(time_ns: int) -> bytes:
    return struct.pack("<II", time_ns >> 32, time_ns & 0xFFFFFFFF)


def _block(kind: int, body: bytes, options: Options) -> bytes:
    content = body + b"".join(struct.pack("<HH", code, len(value)) + _padded(value) for code, value in options)
    content += struct.pack("<HH", 0, 0)
    total = 12 + len(content)
    return struct.pack("<II", kind, total) + content + struct.pack("<I", total)


def _padded(value: bytes) -> bytes:
    return value + bytes(-len(value) % 4)
