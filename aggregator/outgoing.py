"""Datagrams on their way out of an edge: rows of bytes and their records, sealed and sent by the batch in C."""

import ctypes
import os
import socket
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.native import load_library
from aggregator.rows import datagram_rows, payload_rows

MOST = 64
"""Datagrams that one call sends."""

# struct tb_outgoing of native/send.h.
RECORD = np.dtype(
    [
        ("bitmap", np.uint64),
        ("job", np.uint32),
        ("epoch", np.uint32),
        ("round", np.uint32),
        ("chunk", np.uint32),
        ("number", np.uint32),
        ("trailing_edge", np.uint32),
        ("destination", np.uint32),
        ("size", np.uint32),
        ("shard", np.uint16),
        ("value_count", np.uint16),
        ("kind", np.uint8),
        ("reason", np.uint8),
        ("source", np.uint8),
        ("contributors", np.uint8),
    ]
)


class Outgoing:
    """`rows`: uint8 (capacity, stride); `payloads`: the values inside, int32; `records`: dtype RECORD, (capacity,)."""

    def __init__(self, capacity: int, values_per_chunk: int) -> None:
        """Raises OSError if the native library is not built."""
        self.rows: NDArray[np.uint8] = datagram_rows(capacity, values_per_chunk)
        self.payloads: NDArray[np.int32] = payload_rows(self.rows, values_per_chunk)
        self.records: NDArray[Any] = np.zeros(capacity, RECORD)
        self._library = load_library()
        self._stride = self.rows.strides[0]
        self._rows_at = self.rows.ctypes.data
        self._records_at = self.records.ctypes.data

    def seal(self, first: int, count: int) -> None:
        """Write headers and checksums of `count` rows as their records say; sets the records' `size`."""
        self._check(first, count)
        self._library.tb_seal(self._row(first), self._stride, self._record(first), count)

    def send(self, sender: socket.socket, first: int, count: int, port: int) -> int:
        """Send `count` rows, at most MOST, to their records' destinations; returns how many went. Raises OSError."""
        self._check(first, count)
        sent: int = self._library.tb_send(
            sender.fileno(), port, self._row(first), self._stride, self._record(first), count
        )
        if sent < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"sending results: {os.strerror(error)}")
        return sent

    def _check(self, first: int, count: int) -> None:
        if not 0 <= first <= first + count <= len(self.records):
            raise ValueError(f"rows {first} to {first + count} of {len(self.records)}")

    def _row(self, number: int) -> int:
        return self._rows_at + number * self._stride

    def _record(self, number: int) -> int:
        return self._records_at + number * RECORD.itemsize
