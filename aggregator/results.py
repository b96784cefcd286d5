"""The way from an edge to its hosts: numbered results and bypassed contributions, never faster than the access link.

Datagrams wait in a ring of buffers until the pacing and the socket let them go. When the ring is full the caller has to
wait (`room`), so that a burst of results is held in the engine and in the receive buffer and not dropped in a queue.
"""

import ctypes
import errno
import socket
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from aggregator.engine import HeaderBatch
from aggregator.wire.packet import (
    HEADER_BYTES,
    RESULT_PORT,
    VALUE_BYTES,
    Header,
    Kind,
    Reason,
    flag_bypassed,
    frame_bytes,
    write_header,
)

RING = 256
_ALIGNMENT = 64
_NUMBERS = 1 << 32
_AHEAD_NS = 25_000_000
_AHEAD_FRAMES = 32
_RETRY_NS = 1_000_000
_REASONS: Mapping[int, Reason] = {int(reason): reason for reason in Reason}


def datagram_rows(count: int, values_per_chunk: int) -> NDArray[np.uint8]:
    """`count` buffers for datagrams, aligned, each a little longer than the longest legal one."""
    stride = (HEADER_BYTES + VALUE_BYTES * values_per_chunk + _ALIGNMENT) // _ALIGNMENT * _ALIGNMENT + _ALIGNMENT
    memory = np.zeros(count * stride + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + count * stride].reshape(count, stride)


def payload_rows(rows: NDArray[np.uint8], values_per_chunk: int) -> NDArray[np.int32]:
    """The payloads inside `datagram_rows`, shape (count, values_per_chunk); the same memory."""
    return rows[:, HEADER_BYTES : HEADER_BYTES + VALUE_BYTES * values_per_chunk].view("<i4")


class ResultState(ctypes.Structure):
    """Where the ring stands; shared with the loop in C (`struct tb_results` of aggregator/native/edge.h)."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("stride", ctypes.c_uint64),
        ("sizes", ctypes.c_void_p),
        ("shards", ctypes.c_void_p),
        ("numbers", ctypes.c_void_p),
        ("addresses", ctypes.c_void_p),
        ("ns_per_byte", ctypes.c_double),
        ("ahead_ns", ctypes.c_double),
        ("line_free_ns", ctypes.c_double),
        ("retry_ns", ctypes.c_int64),
        ("ring", ctypes.c_uint32),
        ("head", ctypes.c_uint32),
        ("waiting", ctypes.c_uint32),
        ("fd", ctypes.c_int32),
        ("island_id", ctypes.c_uint32),
        ("number_format", ctypes.c_uint32),
        ("key", ctypes.c_char_p),
    )


class ResultStreams:
    """The streams of one edge to its hosts, one stream per shard."""

    def __init__(
        self,
        sender: socket.socket,
        host_addresses: Sequence[str],
        island_id: int,
        values_per_chunk: int,
        line_rate_bps: float,
        number_format: int = 0,
        key: bytes | None = None,
    ):
        self._key = key
        self._sender = sender
        self._destinations = [(address, RESULT_PORT) for address in host_addresses]
        self._island_id = island_id
        self._numbers: NDArray[np.uint32] = np.zeros(len(host_addresses), np.uint32)
        self._addresses = np.frombuffer(b"".join(socket.inet_aton(address) for address in host_addresses), np.uint32)
        self._memory = datagram_rows(RING, values_per_chunk)
        self._payloads = payload_rows(self._memory, values_per_chunk)
        self._rows = [memoryview(row) for row in self._memory]
        self._sizes: NDArray[np.uint32] = np.zeros(RING, np.uint32)
        self._shards: NDArray[np.uint32] = np.zeros(RING, np.uint32)
        ns_per_byte = 8e9 / line_rate_bps
        self.state = ResultState(
            rows=self._memory.ctypes.data,
            stride=self._memory.strides[0],
            sizes=self._sizes.ctypes.data,
            shards=self._shards.ctypes.data,
            numbers=self._numbers.ctypes.data,
            addresses=self._addresses.ctypes.data,
            ns_per_byte=ns_per_byte,
            # The access link's queue holds 50 ms of line rate or 64 frames: half of it is safe to fill ahead of time.
            ahead_ns=max(_AHEAD_NS, _AHEAD_FRAMES * frame_bytes(values_per_chunk) * ns_per_byte),
            ring=RING,
            fd=sender.fileno(),
            island_id=island_id,
            number_format=number_format,
            key=key,
        )

    def close(self) -> None:
        """Close the sending socket; what still waits is not sent."""
        self._sender.close()

    def room(self) -> int:
        """How many more datagrams the ring takes."""
        waiting: int = self.state.waiting
        return RING - waiting

    def free_payloads(self, most: int) -> NDArray[np.int32]:
        """Payload rows, at most `most`, for `Engine.poll` to write to; `add_results` then takes the first ones."""
        start = self._free_row()
        return self._payloads[start : min(RING, start + min(most, self.room()))]

    def add_results(self, headers: HeaderBatch, count: int) -> None:
        """Queue the `count` results that are in the first rows of `headers` and of `free_payloads`."""
        for i in range(count):
            shard = int(headers.shard[i])
            number = int(self._numbers[shard])
            self._numbers[shard] = (number + 1) % _NUMBERS
            header = Header(
                kind=Kind.RESULT,
                source=self._island_id,
                job=int(headers.job[i]),
                epoch=int(headers.epoch[i]),
                round=int(headers.round[i]),
                shard=shard,
                chunk=int(headers.chunk[i]),
                value_count=int(headers.value_count[i]),
                number=number,
                contributors=int(headers.contributors[i]),
                bitmap=int(headers.bitmap[i]),
                reason=_REASONS[int(headers.reason[i])],
                trailing_edge=number,
                number_format=int(self.state.number_format),
            )
            row = self._free_row()
            self._queue(row, write_header(self._rows[row], header, self._key), shard)

    def add_bypassed(self, datagram: memoryview, shard: int) -> None:
        """Queue a contribution as it came, flagged. The ring must have room."""
        row = self._free_row()
        copy = self._rows[row][: len(datagram)]
        copy[:] = datagram
        flag_bypassed(copy, self._key)
        self._queue(row, len(datagram), shard)

    def _free_row(self) -> int:
        row: int = (self.state.head + self.state.waiting) % RING
        return row

    def _queue(self, row: int, size: int, shard: int) -> None:
        self._sizes[row] = size
        self._shards[row] = shard
        self.state.waiting += 1

    def send(self, now_ns: int) -> None:
        """Send what may go now."""
        state = self.state
        while self.next_send_ns() <= now_ns:
            row = state.head
            size = int(self._sizes[row])
            try:
                self._sender.sendto(self._rows[row][:size], self._destinations[int(self._shards[row])])
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                    raise
                state.retry_ns = now_ns + _RETRY_NS
                return
            on_wire = frame_bytes((size - HEADER_BYTES) // VALUE_BYTES)
            state.line_free_ns = max(state.line_free_ns, now_ns) + on_wire * state.ns_per_byte
            state.head = (row + 1) % RING
            state.waiting -= 1

    def next_send_ns(self) -> float:
        """When `send` has something to do; infinite when nothing waits."""
        state = self.state
        if not state.waiting:
            return float("inf")
        return float(max(state.retry_ns, state.line_free_ns - state.ahead_ns))
