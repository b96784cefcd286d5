"""Packets by the batch, for processes that move thousands a second: received, parsed, sealed and sent in C.

A datagram is a row of a byte array; its record says what its header says, and how it came or where it goes.
"""

import socket
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggregator.wire import _batch
from aggregator.wire.packet import HEADER_BYTES, VALUE_BYTES

MOST = 64
"""Datagrams in one call."""

# struct packet_record of packet.h.
RECORD = np.dtype(
    [
        ("bitmap", np.uint64),
        ("tag", np.uint64),
        ("job", np.uint32),
        ("epoch", np.uint32),
        ("round", np.uint32),
        ("chunk", np.uint32),
        ("number", np.uint32),
        ("trailing_edge", np.uint32),
        ("source_address", np.uint32),
        ("destination_address", np.uint32),
        ("size", np.uint32),
        ("shard", np.uint16),
        ("value_count", np.uint16),
        ("kind", np.uint8),
        ("flags", np.uint8),
        ("reason", np.uint8),
        ("source", np.uint8),
        ("contributors", np.uint8),
        ("number_format", np.uint8),
        ("refusal", np.uint8),
        ("reserved", np.uint8),
    ]
)

_ALIGNMENT = 64


class PacketRecord(NamedTuple):
    """One of RECORD as Python numbers; its fields are those of RECORD, in their order."""

    bitmap: int
    tag: int
    job: int
    epoch: int
    round: int
    chunk: int
    number: int
    trailing_edge: int
    source_address: int
    destination_address: int
    size: int
    shard: int
    value_count: int
    kind: int
    flags: int
    reason: int
    source: int
    contributors: int
    number_format: int
    refusal: int
    reserved: int


class Batch:
    """Rows for datagrams of up to `values_per_chunk` values, and their records.

    `rows`: uint8, shape (capacity, stride), aligned. `payloads`: the values inside, int32, shape (capacity,
    values_per_chunk). `records`: dtype RECORD. A row is longer than the longest legal datagram: a longer one is seen.
    """

    def __init__(self, capacity: int, values_per_chunk: int) -> None:
        longest = HEADER_BYTES + VALUE_BYTES * values_per_chunk
        stride = (longest // _ALIGNMENT + 1) * _ALIGNMENT
        memory = np.zeros(capacity * stride + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        self.rows: NDArray[np.uint8] = memory[start : start + capacity * stride].reshape(capacity, stride)
        self.payloads: NDArray[np.int32] = self.rows[:, HEADER_BYTES:longest].view("<i4")
        self.records: NDArray[Any] = np.zeros(capacity, RECORD)
        self._stride = stride

    def receive(self, receiver: socket.socket) -> int:
        """Receive what waits at a socket, at most MOST datagrams, into the first rows; returns how many.

        Raises OSError. `refusal` of a record is 0, or the parser's Refusal; the other fields mean something only when it is 0.
        """
        count = min(MOST, len(self.records))
        return _batch.receive(receiver.fileno(), self.rows, self._stride, self.records, count)

    def take(self, count: int) -> list[PacketRecord]:
        """The records of the first `count` rows, to look at one by one."""
        return [PacketRecord._make(fields) for fields in self.records[:count].tolist()]

    def seal(self, first: int, count: int) -> None:
        """Write the headers of `count` rows from their records, and checksums; at most MOST."""
        _batch.seal(self.rows, self._stride, self.records, first, count)

    def send(self, sender: socket.socket, first: int, count: int, port: int) -> int:
        """Send rows to the `destination_address` of their records, at most MOST; returns how many went.

        Raises OSError.
        """
        return _batch.send(sender.fileno(), self.rows, self._stride, self.records, first, count, port)
