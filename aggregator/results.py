"""The way from an edge to its hosts: numbered results and bypassed contributions, never faster than the access link.

Datagrams wait in a ring of buffers until the pacing and the socket let them go. When the ring is full the caller has to
wait (`room`), so that a burst of results is held in the engine and in the receive buffer and not dropped in a queue.
"""

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address

import numpy as np
from numpy.typing import NDArray

from aggregator.engine import HeaderBatch
from aggregator.wire.batch import MOST, Batch
from aggregator.wire.packet import FRAME_OVERHEAD_BYTES, HEADER_BYTES, RESULT_PORT, Kind, flag_bypassed, frame_bytes

RING = 256
_NUMBERS = 1 << 32
_AHEAD_NS = 25_000_000
_AHEAD_FRAMES = 32
_RETRY_NS = 1_000_000


class ResultStreams:
    """The streams of one edge to its hosts, one stream per shard."""

    def __init__(
        self,
        sender: socket.socket,
        host_addresses: Sequence[str],
        island_id: int,
        values_per_chunk: int,
        line_rate_bps: float,
    ):
        self._sender = sender
        self._hosts: NDArray[np.uint32] = np.array([int(IPv4Address(address)) for address in host_addresses], np.uint32)
        self._island_id = island_id
        self._numbers = [0] * len(host_addresses)
        self._ring = Batch(RING, values_per_chunk)
        self._head = 0
        self._waiting = 0
        self._ns_per_byte = 8e9 / line_rate_bps
        # The access link's queue holds 50 ms of line rate or 64 frames: half of it is safe to fill ahead of time.
        self._ahead_ns = max(_AHEAD_NS, _AHEAD_FRAMES * frame_bytes(values_per_chunk) * self._ns_per_byte)
        self._line_free_ns = 0.0
        self._retry_ns = 0

    def room(self) -> int:
        """How many more datagrams the ring takes."""
        return RING - self._waiting

    def _next_row(self) -> int:
        return (self._head + self._waiting) % RING

    def free_payloads(self, most: int) -> NDArray[np.int32]:
        """Payload rows, at most `most`, for `Engine.poll` to write to; `add_results` then takes the first ones."""
        start = self._next_row()
        return self._ring.payloads[start : min(RING, start + min(most, self.room()))]

    def add_results(self, headers: HeaderBatch, count: int) -> None:
        """Queue the `count` results that are in the first rows of `headers` and of `free_payloads`; at most MOST."""
        if not count:
            return
        first = self._next_row()
        records = self._ring.records[first : first + count]
        records["kind"] = Kind.RESULT
        records["source"] = self._island_id
        records["flags"] = 0
        for name in ("job", "epoch", "round", "shard", "chunk", "value_count", "contributors", "bitmap", "reason"):
            records[name] = getattr(headers, name)[:count]
        numbers = [self._next_number(shard) for shard in headers.shard[:count].tolist()]
        records["number"] = records["trailing_edge"] = numbers
        records["destination_address"] = self._hosts[headers.shard[:count]]
        self._ring.seal(first, count)
        self._waiting += count

    def _next_number(self, shard: int) -> int:
        number = self._numbers[shard]
        self._numbers[shard] = (number + 1) % _NUMBERS
        return number

    def add_bypassed(self, datagram: NDArray[np.uint8], shard: int) -> None:
        """Queue a contribution as it came, flagged. The ring must have room."""
        row = self._next_row()
        copy = self._ring.rows[row, : len(datagram)]
        copy[:] = datagram
        flag_bypassed(copy.data)
        self._ring.records[row]["size"] = len(datagram)
        self._ring.records[row]["destination_address"] = self._hosts[shard]
        self._waiting += 1

    def send(self, now_ns: int) -> None:
        """Send what may go now."""
        while self._waiting and self._retry_ns <= now_ns:
            frames_ns = self._frames_that_may_go_ns(now_ns)
            if not frames_ns:
                return
            sent = self._ring.send(self._sender, self._head, len(frames_ns), RESULT_PORT)
            self._line_free_ns = max(self._line_free_ns, now_ns) + sum(frames_ns[:sent])
            self._head = (self._head + sent) % RING
            self._waiting -= sent
            if sent < len(frames_ns):
                self._retry_ns = now_ns + _RETRY_NS

    def _frames_that_may_go_ns(self, now_ns: int) -> list[float]:
        """The time on the line of each of the next frames, in one piece of the ring, that pacing lets go."""
        most = min(self._waiting, RING - self._head, MOST)
        line_free_ns = max(self._line_free_ns, now_ns)
        frames_ns = []
        for size in self._ring.records["size"][self._head : self._head + most].tolist():
            if line_free_ns - self._ahead_ns > now_ns:
                break
            frames_ns.append((size - HEADER_BYTES + FRAME_OVERHEAD_BYTES) * self._ns_per_byte)
            line_free_ns += frames_ns[-1]
        return frames_ns

    def next_send_ns(self) -> int | float:
        """When `send` has something to do; infinite when nothing waits."""
        if not self._waiting:
            return float("inf")
        return max(self._retry_ns, self._line_free_ns - self._ahead_ns)
