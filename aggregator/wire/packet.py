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
_WORD = struct.Struct("!I")
_TAG = struct.Struct("!Q")
_EPOCH_AND_ROUND = struct.Struct("!II")
_FLAGS_AT, _EPOCH_AT, _NUMBER_AT, _TRAILING_EDGE_AT, _STREAM_AT, _CHECKSUM_AT = 4, 12, 28, 32, 56, 60
_NO_CHECKSUM = bytes(_WORD.size)
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
    size = put_header(out, header)
    seal(out[:size], key)
    return size


def put_header(out: memoryview, header: Header) -> int:
    """Write a header whose checksum is still to come (`seal`); returns the datagram's bytes."""
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
    return HEADER_BYTES + VALUE_BYTES * header.value_count


def put_number(datagram: memoryview, number: int, stream: int) -> None:
    """Give a packet its place in an edge's stream; `seal` has to follow."""
    _WORD.pack_into(datagram, _NUMBER_AT, number)
    _WORD.pack_into(datagram, _STREAM_AT, stream)


def number_of(datagram: memoryview) -> int:
    """The number of a packet that is known to be well-formed."""
    number: int = _WORD.unpack_from(datagram, _NUMBER_AT)[0]
    return number


def epoch_and_round(datagram: memoryview) -> tuple[int, int]:
    """Epoch and round of a packet that is known to be well-formed."""
    epoch, round_ = _EPOCH_AND_ROUND.unpack_from(datagram, _EPOCH_AT)
    return epoch, round_


def put_trailing_edge(datagram: memoryview, trailing_edge: int) -> None:
    """Fill in the trailing edge; `seal` has to follow."""
    _WORD.pack_into(datagram, _TRAILING_EDGE_AT, trailing_edge)


def put_flag(datagram: memoryview, flag: int) -> None:
    """Set one more flag; `seal` has to follow."""
    datagram[_FLAGS_AT] |= flag


def seal(datagram: memoryview, key: bytes | None = None) -> None:
    """Fill in the tag, if there is a key, and the checksum of a whole datagram."""
    if key is not None:
        _TAG.pack_into(datagram, TAG_AT, packet_tag(key, datagram))
    _WORD.pack_into(datagram, _CHECKSUM_AT, 0)
    _WORD.pack_into(datagram, _CHECKSUM_AT, zlib.crc32(datagram))


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
    magic, version, kind, _, reason = fields[:5]
    value_count, tag, checksum = fields[11], fields[17], fields[19]
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
    return _header(fields)


def read_header(datagram: memoryview) -> Header:
    """The header of a packet that is known to be well-formed."""
    return _header(_HEADER.unpack_from(datagram))


def _header(fields: tuple[int, ...]) -> Header:
    kind, flags, reason, source, contributors, job, epoch, round_, shard = fields[2:11]
    value_count, chunk, number, trailing_edge, number_format, bitmap, tag, stream = fields[11:19]
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
