"""The packets between hosts and edges, byte by byte as in docs/wire-format.md. The only parser in Python."""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from aggregator.wire.tag import TAG_AT, packet_tag

MAGIC = 0x5442
VERSION = 1
HEADER_BYTES = 64
VALUE_BYTES = 4
ETHERNET_BYTES = 14
IPV4_UDP_BYTES = 28
FRAME_OVERHEAD_BYTES = ETHERNET_BYTES + IPV4_UDP_BYTES + HEADER_BYTES
MAX_CONTRIBUTORS = 64
CONTRIBUTION_PORT = 47000
RESULT_PORT = 47001
REPAIR_PORT = 47003
FLAG_BYPASSED = 1
FLAG_RETRANSMITTED = 2
MAP_BITS = 64  # numbers or chunks that one NACK, gone or fetch speaks of

_HEADER = struct.Struct("!HBBBBBBIIIHHIIIB3xQQII")
_CHECKSUM = struct.Struct("!I")
_TAG = struct.Struct("!Q")
_CHECKSUM_AT = HEADER_BYTES - _CHECKSUM.size
_NO_CHECKSUM = bytes(_CHECKSUM.size)
_FLAGS_AT = 4
_PROBE = struct.Struct("<Q")
PROBE_VALUES = _PROBE.size // VALUE_BYTES


class Kind(IntEnum):
    CONTRIBUTION = 1
    RESULT = 2
    PROBE = 3
    NACK = 4
    HEARTBEAT = 5
    GONE = 6
    FETCH = 7


class Reason(IntEnum):
    """Why an edge sent a result."""

    NONE = 0
    COMPLETE = 1
    TIMEOUT = 2
    COLLISION = 3
    PASSTHROUGH = 4


class Refusal(IntEnum):
    """Why a datagram is not one of ours, in the order of the checks."""

    LENGTH = 1
    MAGIC = 2
    VERSION = 3
    KIND = 4
    CHECKSUM = 5
    TAG = 6


# Looking an enum member up by calling the class costs several times as much, for every packet.
_KINDS = {int(kind): kind for kind in Kind}
_REASONS = {int(reason): reason for reason in Reason}


class PacketError(ValueError):
    """A datagram that a parser refuses; `refusal` says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"packet refused: bad {refusal.name.lower()}")
        self.refusal = refusal


@dataclass(slots=True)
class Header:
    """One packet's header; the field names are those of docs/wire-format.md."""

    kind: Kind
    source: int
    job: int
    epoch: int
    round: int
    shard: int
    chunk: int
    value_count: int
    number: int = 0
    contributors: int = 1
    bitmap: int = 0
    flags: int = 0
    reason: Reason = Reason.NONE
    trailing_edge: int = 0
    number_format: int = 0
    tag: int = 0
    stream: int = 0


def frame_bytes(value_count: int) -> int:
    """On-wire bytes of the Ethernet frame that carries `value_count` values."""
    return FRAME_OVERHEAD_BYTES + VALUE_BYTES * value_count


def values_per_frame(mtu_bytes: int) -> int:
    """The most values that one frame carries at an MTU of `mtu_bytes`."""
    return (mtu_bytes - IPV4_UDP_BYTES - HEADER_BYTES) // VALUE_BYTES


def write_packet(out: memoryview, header: Header, payload: memoryview | bytes, key: bytes | None = None) -> int:
    """Write header, payload, tag and checksum to the start of `out`; returns the datagram's bytes.

    `payload` is a bytes-like object of 4 × `header.value_count` bytes: little-endian values. Without a key the tag is
    the header's.
    """
    out[HEADER_BYTES : HEADER_BYTES + VALUE_BYTES * header.value_count] = payload
    return write_header(out, header, key)


def write_header(out: memoryview, header: Header, key: bytes | None = None) -> int:
    """Write header, tag and checksum before a payload that is in `out` already; returns the datagram's bytes."""
    size = HEADER_BYTES + VALUE_BYTES * header.value_count
    _HEADER.pack_into(
        out,
        0,
        MAGIC,
        VERSION,
        header.kind,
        header.flags,
        header.reason,
        header.source,
        header.contributors,
        header.job,
        header.epoch,
        header.round,
        header.shard,
        header.value_count,
        header.chunk,
        header.number,
        header.trailing_edge,
        header.number_format,
        header.bitmap,
        header.tag,
        header.stream,
        0,
    )
    if key is not None:
        _TAG.pack_into(out, TAG_AT, packet_tag(key, out[:size]))
    _CHECKSUM.pack_into(out, _CHECKSUM_AT, zlib.crc32(out[:size]))
    return size


def flag_bypassed(datagram: memoryview, key: bytes | None = None) -> None:
    """Flag a whole datagram as bypassed, in place; tag and checksum follow."""
    datagram[_FLAGS_AT] |= FLAG_BYPASSED
    if key is not None:
        _TAG.pack_into(datagram, TAG_AT, packet_tag(key, datagram))
    _CHECKSUM.pack_into(datagram, _CHECKSUM_AT, 0)
    _CHECKSUM.pack_into(datagram, _CHECKSUM_AT, zlib.crc32(datagram))


def write_probe(out: memoryview, header: Header, sent_ns: int, key: bytes | None = None) -> int:
    """Write a probe that was sent at `sent_ns`; `header` is of kind PROBE and has PROBE_VALUES values."""
    return write_packet(out, header, _PROBE.pack(sent_ns), key)


def probe_sent_ns(datagram: memoryview) -> int:
    """When a parsed probe was sent. Raises PacketError if its payload is not that of a probe."""
    if len(datagram) != HEADER_BYTES + _PROBE.size:
        raise PacketError(Refusal.LENGTH)
    sent_ns: int = _PROBE.unpack_from(datagram, HEADER_BYTES)[0]
    return sent_ns


def parse_packet(datagram: memoryview, key: bytes | None = None) -> Header:
    """Check a whole datagram and return its header; the payload is `datagram[HEADER_BYTES:]`.

    With a key, the tag must be the one made with it. Raises PacketError for anything that is not a well-formed packet
    of this version.
    """
    if len(datagram) < HEADER_BYTES:
        raise PacketError(Refusal.LENGTH)
    fields = _HEADER.unpack_from(datagram)
    magic, version, kind, flags, reason, source, contributors, job, epoch, round_, shard = fields[:11]
    value_count, chunk, number, trailing_edge, number_format, bitmap, tag, stream, checksum = fields[11:]
    if magic != MAGIC:
        raise PacketError(Refusal.MAGIC)
    if version != VERSION:
        raise PacketError(Refusal.VERSION)
    if kind not in _KINDS or reason not in _REASONS:
        raise PacketError(Refusal.KIND)
    if len(datagram) != HEADER_BYTES + VALUE_BYTES * value_count:
        raise PacketError(Refusal.LENGTH)
    crc = zlib.crc32(datagram[:_CHECKSUM_AT])
    crc = zlib.crc32(_NO_CHECKSUM, crc)
    if zlib.crc32(datagram[HEADER_BYTES:], crc) != checksum:
        raise PacketError(Refusal.CHECKSUM)
    if key is not None and packet_tag(key, datagram) != tag:
        raise PacketError(Refusal.TAG)
    return Header(
        _KINDS[kind],
        source,
        job,
        epoch,
        round_,
        shard,
        chunk,
        value_count,
        number,
        contributors,
        bitmap,
        flags,
        _REASONS[reason],
        trailing_edge,
        number_format,
        tag,
        stream,
    )
