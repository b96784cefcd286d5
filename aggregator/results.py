"""The way from an edge to its hosts: numbered results and bypassed contributions, never faster than the access link.

Datagrams wait in a ring of buffers until the pacing and the socket let them go. When too many wait the caller has to
wait (`room`), so that a burst of results is held in the engine and in the receive buffer and not dropped in a queue.
What has been sent stays in the ring for a while: that is the resend buffer (aggregator/repair.py).
"""

import ctypes
import errno
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggregator.engine import HeaderBatch
from aggregator.wire.packet import (
    ETHERNET_BYTES,
    FLAG_BYPASSED,
    FLAG_RETRANSMITTED,
    HEADER_BYTES,
    IPV4_UDP_BYTES,
    RESULT_PORT,
    VALUE_BYTES,
    Header,
    Kind,
    Reason,
    epoch_and_round,
    frame_bytes,
    number_of,
    put_flag,
    put_header,
    put_number,
    put_trailing_edge,
    seal,
    write_header,
)

MOST_WAITING = 256
NEVER_NS = (1 << 63) - 1
_ALIGNMENT = 64
_NUMBERS = 1 << 32
_AHEAD_NS = 25_000_000
_AHEAD_FRAMES = 32
_RETRY_NS = 1_000_000
_BUSY = (errno.EAGAIN, errno.ENOBUFS)
_OVERHEAD_BYTES = ETHERNET_BYTES + IPV4_UDP_BYTES
_REASONS: Mapping[int, Reason] = {int(reason): reason for reason in Reason}


def row_stride(values_per_chunk: int) -> int:
    """Bytes from one row of `datagram_rows` to the next."""
    return (HEADER_BYTES + VALUE_BYTES * values_per_chunk + _ALIGNMENT) // _ALIGNMENT * _ALIGNMENT + _ALIGNMENT


def datagram_rows(count: int, values_per_chunk: int) -> NDArray[np.uint8]:
    """`count` buffers for datagrams, aligned, each a little longer than the longest legal one."""
    stride = row_stride(values_per_chunk)
    memory = np.zeros(count * stride + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + count * stride].reshape(count, stride)


def payload_rows(rows: NDArray[np.uint8], values_per_chunk: int) -> NDArray[np.int32]:
    """The payloads inside `datagram_rows`, shape (count, values_per_chunk); the same memory."""
    return rows[:, HEADER_BYTES : HEADER_BYTES + VALUE_BYTES * values_per_chunk].view("<i4")


@dataclass(frozen=True)
class ResendSettings:
    """What is kept of what was sent: at most `buffer_bytes`, each packet for `window_ns`; 0 bytes: nothing.

    `heartbeat_ns`: how soon after its last packet a stream's hosts are told where it stands. `repair_interval_ns`: the
    shortest time between two repairs of one packet; a host may ask as often, on average. `first_number`: where streams
    begin.
    """

    window_ns: int = 0
    buffer_bytes: int = 0
    heartbeat_ns: int = 10_000_000
    repair_interval_ns: int = 5_000_000
    first_number: int = 0


class StreamState(ctypes.Structure):
    """What one host is sent (`struct tb_stream` of aggregator/native/streams.h)."""

    _fields_ = (
        ("last_ns", ctypes.c_int64),
        ("beat_ns", ctypes.c_int64),
        ("whole_ns", ctypes.c_double),
        ("address", ctypes.c_uint32),
        ("next", ctypes.c_uint32),
        ("unsent", ctypes.c_uint32),
        ("trailing", ctypes.c_uint32),
        ("epoch", ctypes.c_uint32),
        ("round", ctypes.c_uint32),
    )


class ResultState(ctypes.Structure):
    """Where the ring stands; shared with the loop in C (`struct tb_results` of aggregator/native/streams.h)."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("stride", ctypes.c_uint64),
        ("sizes", ctypes.c_void_p),
        ("shards", ctypes.c_void_p),
        ("sent_ns", ctypes.c_void_p),
        ("asked_ns", ctypes.c_void_p),
        ("row_of", ctypes.c_void_p),
        ("streams", ctypes.c_void_p),
        ("ns_per_byte", ctypes.c_double),
        ("ahead_ns", ctypes.c_double),
        ("line_free_ns", ctypes.c_double),
        ("retry_ns", ctypes.c_int64),
        ("window_ns", ctypes.c_int64),
        ("heartbeat_ns", ctypes.c_int64),
        ("ring", ctypes.c_uint32),
        ("index", ctypes.c_uint32),
        ("most_waiting", ctypes.c_uint32),
        ("most_held", ctypes.c_uint32),
        ("head", ctypes.c_uint32),
        ("waiting", ctypes.c_uint32),
        ("held", ctypes.c_uint32),
        ("fd", ctypes.c_int32),
        ("island_id", ctypes.c_uint32),
        ("number_format", ctypes.c_uint32),
        ("stream", ctypes.c_uint32),
        ("key", ctypes.c_char_p),
    )


class ResultStreams:
    """The streams of one edge to its hosts, one stream per shard.

    Rows of the ring: `state.waiting` from `state.head` on are to be sent; `state.held` before it have been sent.
    """

    def __init__(
        self,
        sender: socket.socket,
        host_addresses: Sequence[str],
        island_id: int,
        values_per_chunk: int,
        line_rate_bps: float,
        number_format: int = 0,
        key: bytes | None = None,
        resend: ResendSettings = ResendSettings(),
    ):
        self._key = key
        self._sender = sender
        self.destinations = [(address, RESULT_PORT) for address in host_addresses]
        self._island_id = island_id
        row_bytes = row_stride(values_per_chunk)
        most_held = resend.buffer_bytes // row_bytes
        self.ring = MOST_WAITING + most_held
        # A power of two, so that numbers modulo it wrap as they do themselves.
        self._index = 1 << (self.ring - 1).bit_length()
        self._memory = datagram_rows(self.ring, values_per_chunk)
        self._payloads = payload_rows(self._memory, values_per_chunk)
        self._rows = [memoryview(row) for row in self._memory]
        self._sizes: NDArray[np.uint32] = np.zeros(self.ring, np.uint32)
        self._shards: NDArray[np.uint32] = np.zeros(self.ring, np.uint32)
        self._sent_ns: NDArray[np.int64] = np.zeros(self.ring, np.int64)
        self.asked_ns: NDArray[np.int64] = np.zeros(self.ring, np.int64)
        self._row_of: NDArray[np.uint32] = np.zeros((len(host_addresses), self._index), np.uint32)
        first = resend.first_number
        self.streams = (StreamState * len(host_addresses))(
            *(
                StreamState(
                    beat_ns=NEVER_NS,
                    address=int.from_bytes(socket.inet_aton(address), sys.byteorder),
                    next=first,
                    unsent=first,
                    trailing=first,
                )
                for address in host_addresses
            )
        )
        ns_per_byte = 8e9 / line_rate_bps
        self.state = ResultState(
            rows=self._memory.ctypes.data,
            stride=row_bytes,
            sizes=self._sizes.ctypes.data,
            shards=self._shards.ctypes.data,
            sent_ns=self._sent_ns.ctypes.data,
            asked_ns=self.asked_ns.ctypes.data,
            row_of=self._row_of.ctypes.data,
            streams=ctypes.addressof(self.streams),
            ns_per_byte=ns_per_byte,
            # The access link's queue holds 50 ms of line rate or 64 frames: half of it is safe to fill ahead of time.
            ahead_ns=max(_AHEAD_NS, _AHEAD_FRAMES * frame_bytes(values_per_chunk) * ns_per_byte),
            window_ns=resend.window_ns,
            heartbeat_ns=resend.heartbeat_ns,
            ring=self.ring,
            index=self._index,
            most_waiting=MOST_WAITING,
            most_held=most_held,
            fd=sender.fileno(),
            island_id=island_id,
            number_format=number_format,
            stream=1 + secrets.randbelow(_NUMBERS - 1),
            key=key,
        )

    def close(self) -> None:
        """Close the sending socket; what still waits is not sent."""
        self._sender.close()

    def room(self) -> int:
        """How many more datagrams the ring takes."""
        waiting: int = self.state.waiting
        return MOST_WAITING - waiting

    def free_payloads(self, most: int) -> NDArray[np.int32]:
        """Payload rows, at most `most`, for `Engine.poll` to write to; `add_results` then takes the first ones."""
        start = self._free_row()
        return self._payloads[start : min(self.ring, start + min(most, self.room()))]

    def add_results(self, headers: HeaderBatch, count: int) -> None:
        """Queue the `count` results that are in the first rows of `headers` and of `free_payloads`."""
        for i in range(count):
            shard = int(headers.shard[i])
            header = Header(
                kind=Kind.RESULT,
                source=self._island_id,
                job=int(headers.job[i]),
                epoch=int(headers.epoch[i]),
                round=int(headers.round[i]),
                shard=shard,
                chunk=int(headers.chunk[i]),
                value_count=int(headers.value_count[i]),
                contributors=int(headers.contributors[i]),
                bitmap=int(headers.bitmap[i]),
                reason=_REASONS[int(headers.reason[i])],
                number_format=int(self.state.number_format),
            )
            self._queue(put_header(self._rows[self._free_row()], header), shard)

    def add_bypassed(self, datagram: memoryview, shard: int) -> None:
        """Queue a contribution as it came, flagged. The ring must have room."""
        copy = self._rows[self._free_row()][: len(datagram)]
        copy[:] = datagram
        put_flag(copy, FLAG_BYPASSED)
        self._queue(len(datagram), shard)

    def _free_row(self) -> int:
        row: int = (self.state.head + self.state.waiting) % self.ring
        return row

    def _queue(self, size: int, shard: int) -> None:
        """Number the packet in the free row and put it in line."""
        row, stream = self._free_row(), self.streams[shard]
        number: int = stream.next
        put_number(self._rows[row], number, self.state.stream)
        stream.next = (number + 1) % _NUMBERS
        self._row_of[shard, number % self._index] = row
        self._sizes[row] = size
        self._shards[row] = shard
        self.state.waiting += 1

    def send(self, now_ns: int) -> None:
        """Send what may go now."""
        self.release_old(now_ns)
        while self.state.waiting and self.next_line_ns() <= now_ns:
            row = self.state.head
            if not self.send_row(row, now_ns):
                return
            self._hold_first(row, now_ns)

    def send_row(self, row: int, now_ns: int) -> bool:
        """Send the packet in a row, with the trailing edge of this moment; False if the socket has no room."""
        datagram, shard = self._rows[row][: int(self._sizes[row])], int(self._shards[row])
        held = self.state.most_held > 0
        put_trailing_edge(datagram, self.streams[shard].trailing if held else number_of(datagram))
        seal(datagram, self._key)
        try:
            self._sender.sendto(datagram, self.destinations[shard])
        except OSError as error:
            if error.errno not in _BUSY:
                raise
            self.state.retry_ns = now_ns + _RETRY_NS
            return False
        on_wire = len(datagram) + _OVERHEAD_BYTES
        self.state.line_free_ns = max(self.state.line_free_ns, now_ns) + on_wire * self.state.ns_per_byte
        return True

    def send_small(self, header: Header) -> None:
        """Send a packet without payload and number to the host of its shard, now."""
        header.trailing_edge = self.streams[header.shard].trailing
        datagram = memoryview(bytearray(HEADER_BYTES))
        write_header(datagram, header, self._key)
        try:
            self._sender.sendto(datagram, self.destinations[header.shard])
        except OSError as error:
            # One that does not fit the buffer is as good as lost on the way.
            if error.errno not in _BUSY:
                raise

    def _hold_first(self, row: int, now_ns: int) -> None:
        """The first row that waits has been sent."""
        state, stream, datagram = self.state, self.streams[int(self._shards[row])], self._rows[row]
        self._sent_ns[row] = self.asked_ns[row] = stream.last_ns = now_ns
        stream.beat_ns = now_ns + state.heartbeat_ns if state.most_held else NEVER_NS
        stream.unsent = (number_of(datagram) + 1) % _NUMBERS
        stream.epoch, stream.round = epoch_and_round(datagram)
        state.head = (row + 1) % self.ring
        state.waiting -= 1
        state.held += 1
        if state.held > state.most_held:
            self._release_oldest()

    def release_old(self, now_ns: int) -> None:
        """Forget what has been held for longer than the window."""
        state = self.state
        while state.held and now_ns - int(self._sent_ns[self._oldest_row()]) > state.window_ns:
            self._release_oldest()

    def _release_oldest(self) -> None:
        row = self._oldest_row()
        self.streams[int(self._shards[row])].trailing = (number_of(self._rows[row]) + 1) % _NUMBERS
        self.state.held -= 1

    def _oldest_row(self) -> int:
        row: int = (self.state.head - self.state.held) % self.ring
        return row

    def find_held(self, shard: int, number: int) -> int | None:
        """The row that holds a number that has been sent; None if none does."""
        row = int(self._row_of[shard, number % self._index])
        age: int = (self.state.head - 1 - row) % self.ring
        held = age < self.state.held and self._shards[row] == shard and number_of(self._rows[row]) == number
        return row if held else None

    def flag_retransmitted(self, row: int) -> int:
        """Flag a packet that is about to be sent again; returns the on-wire bytes of its frame."""
        put_flag(self._rows[row], FLAG_RETRANSMITTED)
        return int(self._sizes[row]) + _OVERHEAD_BYTES

    def next_line_ns(self) -> float:
        """When the line is free at the earliest for one more datagram, whatever it is."""
        return float(max(self.state.retry_ns, self.state.line_free_ns - self.state.ahead_ns))

    def next_send_ns(self) -> float:
        """When `send` has something to do; infinite when nothing waits."""
        return self.next_line_ns() if self.state.waiting else float("inf")
