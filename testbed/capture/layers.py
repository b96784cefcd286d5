"""Scapy layers of the packets between hosts and edges (docs/wire-format.md): import this, and Scapy knows them.

>>> from scapy.all import rdpcap
>>> from testbed.capture.layers import TB
>>> rdpcap("runs/…/pcap/nyc.pcapng")[0][TB].round
"""

import zlib

from scapy.fields import (
    ByteEnumField,
    ByteField,
    FlagsField,
    IntField,
    ShortField,
    X3BytesField,
    XIntField,
    XLongField,
    XShortField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, bind_bottom_up, bind_layers

from aggregator.wire.packet import (
    CONTRIBUTION_PORT,
    HEADER_BYTES,
    MAGIC,
    REPAIR_PORT,
    RESULT_PORT,
    VALUE_BYTES,
    VERSION,
    Kind,
    Reason,
)

_CONTRIBUTORS_AT = 7
_VALUE_COUNT_AT = 22
_CHECKSUM_AT = HEADER_BYTES - 4


class TB(Packet):
    """One datagram. `contributors`, `value_count`, `checksum` are computed if left out; the payload is its values."""

    name = "Testbed"
    fields_desc = [  # noqa: RUF012 (Scapy's way)
        XShortField("magic", MAGIC),
        ByteField("version", VERSION),
        ByteEnumField("kind", Kind.CONTRIBUTION, {kind.value: kind.name.lower() for kind in Kind}),
        FlagsField("flags", 0, 8, ["bypassed", "retransmitted"]),
        ByteEnumField("reason", 0, {reason.value: reason.name.lower() for reason in Reason}),
        ByteField("source", 0),
        ByteField("contributors", None),
        XIntField("job", 0),
        IntField("epoch", 0),
        IntField("round", 0),
        ShortField("shard", 0),
        ShortField("value_count", None),
        IntField("chunk", 0),
        IntField("number", 0),
        IntField("trailing_edge", 0),
        ByteEnumField("number_format", 0, {0: "fixed", 1: "f32"}),
        X3BytesField("reserved", 0),
        XLongField("bitmap", 0),
        XLongField("tag", 0),
        XIntField("stream", 0),
        XIntField("checksum", None),
    ]

    def post_build(self, header: bytes, payload: bytes) -> bytes:
        if self.contributors is None:
            count = self.bitmap.bit_count().to_bytes(1, "big")
            header = header[:_CONTRIBUTORS_AT] + count + header[_CONTRIBUTORS_AT + 1 :]
        if self.value_count is None:
            count = (len(payload) // VALUE_BYTES).to_bytes(2, "big")
            header = header[:_VALUE_COUNT_AT] + count + header[_VALUE_COUNT_AT + 2 :]
        if self.checksum is None:
            header = header[:_CHECKSUM_AT] + zlib.crc32(header[:_CHECKSUM_AT] + bytes(4) + payload).to_bytes(4, "big")
        return header + payload

    def checksum_is_good(self) -> bool:
        """Whether the checksum that was read is that of the datagram, which must have been captured whole."""
        datagram = bytes(self.original)
        covered = datagram[:_CHECKSUM_AT] + bytes(4) + datagram[HEADER_BYTES:]
        return bool(zlib.crc32(covered) == self.checksum)


for _port in (CONTRIBUTION_PORT, RESULT_PORT, REPAIR_PORT):
    bind_bottom_up(UDP, TB, dport=_port)
bind_layers(UDP, TB, dport=CONTRIBUTION_PORT)
