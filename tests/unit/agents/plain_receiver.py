"""What a host does with what comes in, one by one and in plain Python: agents/native/receive.c does the same."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents import float32
from agents.fetching import Fetching, RoundTrips
from agents.receiving import Counts
from agents.shard import Shard
from agents.stream_watch import StreamWatch
from aggregator.wire.packet import (
    FLAG_BYPASSED,
    FLAG_RETRANSMITTED,
    HEADER_BYTES,
    Header,
    Kind,
    PacketError,
    Reason,
    parse_packet,
)

_FROM_EDGE = (Kind.RESULT, Kind.CONTRIBUTION, Kind.HEARTBEAT, Kind.GONE)
_RESULT_FLAGS = (0, FLAG_RETRANSMITTED)
# Passed on by the edge, that and repaired, or fetched.
_CONTRIBUTION_FLAGS = (FLAG_BYPASSED, FLAG_BYPASSED | FLAG_RETRANSMITTED, FLAG_RETRANSMITTED)


class PlainReceiver:
    """A host's way in, the watch over its stream, and what it wants to fetch; packets come one by one."""

    def __init__(
        self,
        shard: Shard,
        edge_address: str,
        peers: Mapping[str, int],
        number_format: int,
        key: bytes | None,
        hold_off_ns: int,
    ) -> None:
        self.watch = StreamWatch(hold_off_ns)
        self.fetching: Fetching | None = None
        self.counts = Counts()
        self.have: NDArray[np.uint64] = np.zeros(shard.chunks, np.uint64)
        self._shard = shard
        self._edge_address = edge_address
        self._peers = peers
        self._number_format = number_format
        self._numbers = np.dtype("<f4" if number_format == float32.NUMBER_FORMAT else "<i4")
        self._key = key
        self._hold_off_ns = hold_off_ns
        self._round_trips = RoundTrips(hold_off_ns)
        self._epoch = self._round = self.expected = 0
        self._summed: NDArray[Any] | None = None

    def begin(self, epoch: int, round_number: int, expected: int, summed: NDArray[np.int32], fetch: bool) -> None:
        self._epoch, self._round, self.expected = epoch, round_number, expected
        self._summed = summed.view(self._numbers)
        summed[:] = 0
        self.have[:] = 0
        if fetch:
            self.fetching = Fetching(expected, self.have, self._hold_off_ns, self._round_trips)

    def end(self) -> Counts:
        self._summed = self.fetching = None
        self.watch.forget()
        counts, self.counts = self.counts, Counts()
        return counts

    @property
    def complete(self) -> bool:
        return not self.expected or all(have == self.expected for have in self.have.tolist())

    def take(self, datagram: bytes, sender: str, now_ns: int) -> None:
        """A datagram has come."""
        try:
            header = parse_packet(memoryview(datagram), self._key)
        except PacketError:
            self.counts.refused += 1
            return
        if not self._trusts(header, sender):
            self.counts.refused += 1
            return
        if header.kind is Kind.HEARTBEAT:
            self.watch.heartbeat(header, now_ns)
            return
        if header.kind is Kind.GONE:
            self.watch.gone(header)
            return
        if header.stream:
            self.watch.arrived(header, now_ns)
        if self._summed is None:
            self.counts.late += 1
        elif self._merge(header, datagram[HEADER_BYTES:]) and self.fetching is not None:
            self.fetching.arrived(header.chunk, header.bitmap, now_ns, fetched=not header.stream)
            if header.reason is Reason.TIMEOUT:
                self.fetching.given_up(header.chunk, now_ns)

    def _trusts(self, header: Header, sender: str) -> bool:
        if sender == self._edge_address:
            ours = (header.job, header.shard) == (self._shard.job, self._shard.number)
            return ours and header.kind in _FROM_EDGE
        fetched = header.kind is Kind.CONTRIBUTION and header.flags == FLAG_RETRANSMITTED and not header.stream
        return fetched and self._peers.get(sender) == header.source

    def _merge(self, header: Header, payload: bytes) -> bool:
        assert self._summed is not None
        if header.job == self._shard.job and header.round < self._round:
            self.counts.late += 1
            return False
        if not self._is_ours(header):
            self.counts.refused += 1
            return False
        have = int(self.have[header.chunk])
        if header.bitmap & have:
            if header.bitmap & ~have:
                self.counts.overlaps += 1
            else:
                self.counts.duplicates += 1
            return False
        first, end = self._shard.value_range(header.chunk)
        with np.errstate(invalid="ignore"):
            self._summed[first:end] += np.frombuffer(payload, self._numbers)
        self.have[header.chunk] = have | header.bitmap
        self.counts = self._counted(header)
        return True

    def _counted(self, header: Header) -> Counts:
        if header.kind is Kind.CONTRIBUTION:
            name = "bypassed" if header.flags & FLAG_BYPASSED else "fetched"
        else:
            name = "complete" if header.reason is Reason.COMPLETE else "partial"
        repaired = header.contributors if header.flags & FLAG_RETRANSMITTED else 0
        return replace(self.counts, repaired=self.counts.repaired + repaired, **{name: getattr(self.counts, name) + 1})

    def _is_ours(self, header: Header) -> bool:
        shard = self._shard
        where = (header.job, header.epoch, header.round, header.shard)
        if where != (shard.job, self._epoch, self._round, shard.number):
            return False
        if header.chunk >= shard.chunks or header.number_format != self._number_format:
            return False
        first, end = shard.value_range(header.chunk)
        if header.value_count != end - first:
            return False
        bitmap = header.bitmap
        if bitmap == 0 or bitmap & ~self.expected or header.contributors != bitmap.bit_count():
            return False
        if header.kind is Kind.RESULT:
            return header.source == shard.island_id and header.flags in _RESULT_FLAGS
        return header.kind is Kind.CONTRIBUTION and header.flags in _CONTRIBUTION_FLAGS and bitmap == 1 << header.source
