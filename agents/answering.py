"""Giving other islands' hosts what they have missed: contributions of the last rounds, one by one. No sockets.

Bounded, since a request of one small packet asks for up to 64 large ones: only hosts of the same shard may ask, for
what this one has sent; each has a budget of requests; answers get a quarter of the uplink.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from agents.exchange_area import ExchangeArea
from agents.sending import contribution_header
from agents.shard import Shard
from aggregator.wire.packet import (
    FLAG_RETRANSMITTED,
    HEADER_BYTES,
    MAP_BITS,
    VALUE_BYTES,
    Header,
    Kind,
    frame_bytes,
    write_packet,
)

_SHARE = 0.25
_AHEAD_NS = 5_000_000
_MOST_WAITING = 4096
_REQUESTS_AT_ONCE = 32


@dataclass(frozen=True)
class Answer:
    """A contribution to be sent to the host with `address`."""

    address: str
    datagram: memoryview


_Key = tuple[str, int, int]  # address, round, chunk


class Answering:
    """What one host has been asked for."""

    def __init__(
        self,
        shard: Shard,
        area: ExchangeArea,
        peers: Mapping[str, int],
        uplink_bps: float,
        interval_ns: int,
        number_format: int = 0,
        key: bytes | None = None,
    ) -> None:
        """`peers`: island ids by address, of the hosts that may ask.

        `interval_ns`: the shortest time between two answers with one contribution, and between two requests of one
        host, on average.
        """
        self.counts: Counter[str] = Counter()
        self._shard = shard
        self._area = area
        self._peers = peers
        self._ns_per_byte = 8e9 / (uplink_bps * _SHARE)
        self._interval_ns = interval_ns
        self._number_format = number_format
        self._key = key
        self._epochs: dict[int, int] = {}
        self._waiting: dict[_Key, None] = {}  # in the order of asking
        self._asked_ns: dict[_Key, int] = {}
        self._whole_ns: dict[str, int] = {}
        self._free_ns = 0.0
        self._buffer = memoryview(bytearray(frame_bytes(shard.values_per_chunk)))

    def keep(self, round_number: int, epoch: int) -> None:
        """The contribution of this round can be asked for, until its row is needed again."""
        self._epochs[round_number] = epoch
        # The row of the next round is being written while this one may still be asked for.
        kept = range(round_number - self._area.depth + 2, round_number + 1)
        self._epochs = {number: epoch for number, epoch in self._epochs.items() if number in kept}
        self._asked_ns = {key: asked_ns for key, asked_ns in self._asked_ns.items() if key[1] in kept}

    def request(self, header: Header, address: str, now_ns: int) -> bool:
        """Take a request; False, and nothing happens, if it is none of this host's business."""
        shard = self._shard
        if (
            header.kind is not Kind.FETCH
            or self._peers.get(address) != header.source
            or (header.job, header.shard) != (shard.job, shard.number)
            or self._epochs.get(header.round) != header.epoch
            or header.value_count
            or not header.bitmap & 1
            or header.contributors != header.bitmap.bit_count()
        ):
            return False
        whole_ns = max(self._whole_ns.get(address, 0), now_ns)
        if whole_ns - now_ns > (_REQUESTS_AT_ONCE - 1) * self._interval_ns:
            self.counts["fetches_limited"] += 1
            return True
        self._whole_ns[address] = whole_ns + self._interval_ns
        self.counts["fetches"] += 1
        for bit in range(MAP_BITS):
            chunk = header.chunk + bit
            if header.bitmap >> bit & 1 and chunk < shard.chunks:
                self._wait((address, header.round, chunk), now_ns)
        return True

    def _wait(self, key: _Key, now_ns: int) -> None:
        asked_ns = self._asked_ns.get(key)
        recently = asked_ns is not None and now_ns - asked_ns < self._interval_ns
        if recently or len(self._waiting) == _MOST_WAITING or key in self._waiting:
            self.counts["answers_refused"] += 1
            return
        self._asked_ns[key] = now_ns
        self._waiting[key] = None

    def next_ns(self) -> float:
        """When `answer` has one to send; infinite: when there has been another request."""
        return self._free_ns - _AHEAD_NS if self._waiting else float("inf")

    def answer(self, now_ns: int) -> Answer | None:
        """The next contribution to send now; it has to be sent before the next call."""
        while self._waiting and self.next_ns() <= now_ns:
            key = next(iter(self._waiting))
            del self._waiting[key]
            address, round_number, chunk = key
            epoch = self._epochs.get(round_number)
            if epoch is None:
                continue
            header = contribution_header(
                self._shard, epoch, round_number, chunk, self._number_format, FLAG_RETRANSMITTED
            )
            first, end = self._shard.value_range(chunk)
            row = self._area.sent[self._area.row(round_number), self._shard.value_slice]
            payload = row[first:end].astype("<i4", copy=False).data.cast("B")
            size = write_packet(self._buffer, header, payload, self._key)
            on_wire = frame_bytes((size - HEADER_BYTES) // VALUE_BYTES)
            self._free_ns = max(self._free_ns, now_ns) + on_wire * self._ns_per_byte
            self.counts["answers"] += 1
            return Answer(address, self._buffer[:size])
        return None
