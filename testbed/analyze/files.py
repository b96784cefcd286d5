"""Reads pcap and pcapng files chunk by chunk, with whole columns of frames at a time and flat memory."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from testbed.errors import TestbedError

UNKNOWN, INBOUND, OUTBOUND = 0, 1, 2

_SECTION, _INTERFACE, _SIMPLE, _STATISTICS, _PACKET = 0x0A0D0D0A, 1, 3, 5, 6
_BYTE_ORDER_MAGIC = 0x1A2B3C4D
_IF_NAME, _IF_TSRESOL, _IF_TSOFFSET, _COMMENT = 2, 9, 14, 1
_ISB_START, _ISB_END, _ISB_IF_DROPPED, _ISB_OS_DROPPED = 2, 3, 5, 7
_EPB_FLAGS = 2
_TIME_BYTES = 8
_PACKET_HEAD_BYTES = 28
_PCAP_HEAD_BYTES, _RECORD_HEAD_BYTES = 24, 16
_PCAP_TICKS_NS = {0xA1B2C3D4: 1000, 0xA1B23C4D: 1}
_MAX_BLOCK_BYTES = 64 << 20
_NS_PER_S = 10**9
_LATEST_NS = 1 << 62  # later times are damage


@dataclass
class Interface:
    """An interface of a file. `lost` frames did not get into it, as the file itself says; None: it does not say."""

    name: str
    comment: str
    link_type: int
    ns_per_tick: float
    offset_ns: int = 0
    start_ns: int | None = None
    end_ns: int | None = None
    lost: int | None = None


@dataclass(frozen=True)
class Frames:
    """Frames in the order of the file, in columns. `at` is where a frame begins in `buffer`, a byte array."""

    buffer: NDArray[np.uint8]
    interface: NDArray[np.int64]
    direction: NDArray[np.uint8]
    time_ns: NDArray[np.int64]
    at: NDArray[np.int64]
    captured: NDArray[np.int64]
    length: NDArray[np.int64]


@dataclass
class CaptureFile:
    """A capture file. `interfaces` grows as they are read; those of recordings of ours are all known at once.

    `cut` once reading has found that the end of the file is missing.
    """

    path: Path
    interfaces: list[Interface] = field(default_factory=list)
    comment: str = ""
    cut: bool = False
    _order: str = "<"
    _base: int = 0

    def frames(self, chunk_bytes: int) -> Iterator[Frames]:
        """All frames, as many at a time as are in a chunk. Raises TestbedError for what is no capture."""
        self.interfaces, self.cut = [], False
        with _open(self.path) as file:
            buffer = file.read(_PCAP_HEAD_BYTES)
            walk = self._walk_pcapng
            if buffer[:4] != _SECTION.to_bytes(4, "little"):
                self._read_pcap_head(buffer)
                buffer, walk = b"", self._walk_pcap
            wanted = chunk_bytes
            while True:
                fresh = file.read(wanted)
                buffer += fresh
                at, frames = walk(buffer)
                if frames is not None:
                    yield frames
                elif at == 0 and not fresh:
                    break
                # A block that is longer than a chunk wants more of the file.
                wanted = chunk_bytes if at else 2 * wanted
                buffer = buffer[at:]
            self.cut = bool(buffer)

    def read_ends(self) -> None:
        """Take over the counts at the end of a pcapng file, where its interfaces' recordings end."""
        with _open(self.path) as file:
            end = file.seek(0, 2)
            found: dict[int, dict[int, bytes]] = {}
            while end >= 12:
                file.seek(end - 4)
                (total,) = struct.unpack(self._order + "I", file.read(4))
                if total % 4 or not 12 <= total <= min(end, 1 << 16):
                    break
                file.seek(end - total)
                block = file.read(total)
                kind, _, number = struct.unpack_from(self._order + "3I", block)
                if kind != _STATISTICS:
                    break
                found[number] = dict(self._options(block, 20))
                end -= total
        for number, options in found.items():
            if number < len(self.interfaces):
                interface = self.interfaces[number]
                drops = [self._number(options[code]) for code in (_ISB_IF_DROPPED, _ISB_OS_DROPPED) if code in options]
                interface.lost = sum(drops) if drops else None
                if all(len(options.get(code, b"")) == _TIME_BYTES for code in (_ISB_START, _ISB_END)):
                    interface.start_ns = self._time_ns(options[_ISB_START], interface)
                    interface.end_ns = self._time_ns(options[_ISB_END], interface)

    def read_interfaces(self) -> None:
        """Take over the interfaces at the beginning of the file."""
        self.interfaces = []
        for _ in self.frames(1 << 16):
            break

    def _read_pcap_head(self, head: bytes) -> None:
        if not head:
            raise TestbedError(f"{self.path}: empty: not even the header of a capture")
        for order in "<>":
            if len(head) == _PCAP_HEAD_BYTES:
                magic, _, _, _, _, _, link_type = struct.unpack(order + "IHHiIII", head)
                if magic in _PCAP_TICKS_NS:
                    self._order = order
                    self.interfaces = [Interface("", "", link_type & 0xFFFF, _PCAP_TICKS_NS[magic])]
                    return
        hint = "; it is compressed: unpack it first" if head[:2] == b"\x1f\x8b" else ""
        raise TestbedError(f"{self.path}: neither pcap nor pcapng{hint}")

    def _walk_pcap(self, buffer: bytes) -> tuple[int, Frames | None]:
        unpack, end = struct.Struct(self._order + "I").unpack_from, len(buffer)
        starts, at = [], 0
        while at + _RECORD_HEAD_BYTES <= end:
            (captured,) = unpack(buffer, at + 8)
            if captured > _MAX_BLOCK_BYTES:
                raise TestbedError(f"{self.path}: damaged: a frame of {captured} bytes")
            if at + _RECORD_HEAD_BYTES + captured > end:
                break
            starts.append(at)
            at += _RECORD_HEAD_BYTES + captured
        if not starts:
            return 0, None
        data = np.frombuffer(buffer, np.uint8)
        begin = np.array(starts, np.int64)
        heads = rows(data, begin, _RECORD_HEAD_BYTES).view(self._order + "u4").astype(np.int64)
        time_ns = heads[:, 0] * _NS_PER_S + heads[:, 1] * int(self.interfaces[0].ns_per_tick)
        none = np.zeros(len(starts), np.int64)
        frames = Frames(
            data, none, none.astype(np.uint8), time_ns, begin + _RECORD_HEAD_BYTES, heads[:, 2], heads[:, 3]
        )
        return at, frames

    def _walk_pcapng(self, buffer: bytes) -> tuple[int, Frames | None]:
        unpack, end = struct.Struct(self._order + "II").unpack_from, len(buffer)
        starts: list[int] = []
        at = 0
        while at + 12 <= end:
            kind, total = unpack(buffer, at)
            if kind == _SECTION:
                if starts:
                    break  # another section: its byte order and interfaces are others
                self._read_section(buffer, at)
                unpack = struct.Struct(self._order + "II").unpack_from
                kind, total = unpack(buffer, at)
            if total < 12 or total % 4 or total > _MAX_BLOCK_BYTES:
                raise TestbedError(f"{self.path}: damaged: a block of {total} bytes")
            if at + total > end:
                break
            if kind == _PACKET:
                starts.append(at)
            elif kind == _SECTION:
                options = dict(self._options(buffer[at : at + total], 24))
                self.comment = options.get(_COMMENT, b"").decode("utf-8", "replace")
            elif kind == _INTERFACE:
                self._read_interface(buffer[at : at + total])
            elif kind == _SIMPLE:
                raise TestbedError(f"{self.path}: its packets have no times; capture with enhanced packet blocks")
            at += total
        return at, self._decode(buffer, np.array(starts, np.int64)) if starts else None

    def _decode(self, buffer: bytes, begin: NDArray[np.int64]) -> Frames:
        data = np.frombuffer(buffer, np.uint8)
        heads = rows(data, begin, _PACKET_HEAD_BYTES).view(self._order + "u4").astype(np.int64)
        total, captured = heads[:, 1], heads[:, 5]
        interface = heads[:, 2] + self._base
        if interface.max() >= len(self.interfaces) or (captured > total - _PACKET_HEAD_BYTES - 4).any():
            raise TestbedError(f"{self.path}: damaged: a packet of no interface, or longer than its block")
        ticks = heads[:, 3] << 32 | heads[:, 4]
        scale = np.array([each.ns_per_tick for each in self.interfaces])
        shift = np.array([each.offset_ns for each in self.interfaces], np.int64)
        if (scale == 1).all():
            time_ns = ticks
        elif (scale % 1 == 0).all():
            time_ns = ticks * scale.astype(np.int64)[interface]
        else:
            time_ns = np.minimum(ticks * scale[interface], _LATEST_NS).astype(np.int64)
        direction = self._directions(buffer, data, begin, total, captured)
        return Frames(
            data, interface, direction, time_ns + shift[interface], begin + _PACKET_HEAD_BYTES, captured, heads[:, 6]
        )

    def _directions(
        self,
        buffer: bytes,
        data: NDArray[np.uint8],
        begin: NDArray[np.int64],
        total: NDArray[np.int64],
        captured: NDArray[np.int64],
    ) -> NDArray[np.uint8]:
        options = begin + _PACKET_HEAD_BYTES + (captured + 3 & ~3)
        direction = np.zeros(len(begin), np.uint8)
        has = np.flatnonzero(options + 8 < begin + total)
        first = rows(data, options[has], 8)
        codes = first[:, :4].copy().view(self._order + "u2")
        flags = first[:, 4:].copy().view(self._order + "u4")[:, 0]
        plain = (codes[:, 0] == _EPB_FLAGS) & (codes[:, 1] == 4)
        direction[has[plain]] = flags[plain] & 3
        for row in has[~plain & (codes[:, 0] != 0)]:
            block = buffer[begin[row] : begin[row] + total[row]]
            found = dict(self._options(block, int(options[row] - begin[row]))).get(_EPB_FLAGS, b"")
            direction[row] = self._number(found) & 3
        return direction

    def _read_section(self, buffer: bytes, at: int) -> None:
        magic = buffer[at + 8 : at + 12]
        orders = {_BYTE_ORDER_MAGIC.to_bytes(4, "little"): "<", _BYTE_ORDER_MAGIC.to_bytes(4, "big"): ">"}
        if magic not in orders:
            raise TestbedError(f"{self.path}: damaged: a section without byte order")
        self._order, self._base = orders[magic], len(self.interfaces)

    def _read_interface(self, block: bytes) -> None:
        (link_type,) = struct.unpack_from(self._order + "H", block, 8)
        options = dict(self._options(block, 16))
        resolution = (options.get(_IF_TSRESOL) or b"\x06")[0]
        ticks_per_s = 2 ** (resolution & 0x7F) if resolution & 0x80 else 10**resolution
        offset_s = self._number(options.get(_IF_TSOFFSET, b""))
        name, comment = (options.get(code, b"").decode("utf-8", "replace") for code in (_IF_NAME, _COMMENT))
        ns_per_tick = _NS_PER_S / ticks_per_s
        self.interfaces.append(Interface(name, comment, link_type, ns_per_tick, offset_s * _NS_PER_S))

    def _options(self, block: bytes, at: int) -> Iterator[tuple[int, bytes]]:
        while at + 8 <= len(block):
            code, size = struct.unpack_from(self._order + "HH", block, at)
            if code == 0 or at + 4 + size > len(block) - 4:
                return
            yield code, block[at + 4 : at + 4 + size]
            at += 4 + (size + 3 & ~3)

    def _number(self, value: bytes) -> int:
        return int.from_bytes(value, "little" if self._order == "<" else "big")

    def _time_ns(self, value: bytes, interface: Interface) -> int:
        high, low = struct.unpack(self._order + "II", value)
        return int((high << 32 | low) * interface.ns_per_tick) + interface.offset_ns


def rows(data: NDArray[np.uint8], at: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """`width` bytes from each of these positions on, which must lie inside, as rows."""
    windows = np.lib.stride_tricks.as_strided(data, (max(len(data) - width + 1, 0), width), (1, 1), writeable=False)
    found: NDArray[np.uint8] = windows[at]
    return found


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise TestbedError(f"{path}: {error.strerror}") from error
