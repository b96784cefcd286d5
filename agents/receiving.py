"""The receiving half of a data plane: a round's results and bypassed contributions, merged into the exchange area."""

import socket
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents import float32
from agents.shard import Shard
from aggregator.wire.buffers import enlarge_receive_buffer
from aggregator.wire.packet import FLAG_BYPASSED, FLAG_RETRANSMITTED, RESULT_PORT, Header, Kind, Reason

_RESULT_FLAGS = (0, FLAG_RETRANSMITTED)
# Passed on by the edge, that and repaired, or fetched.
_CONTRIBUTION_FLAGS = (FLAG_BYPASSED, FLAG_BYPASSED | FLAG_RETRANSMITTED, FLAG_RETRANSMITTED)


def open_receiver(address: str) -> socket.socket:
    """A non-blocking socket for what the edge sends to the host with `address`. Raises OSError."""
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    enlarge_receive_buffer(receiver)
    receiver.bind((address, RESULT_PORT))
    receiver.setblocking(False)
    return receiver


@dataclass
class Counts:
    """What came in during a round. `complete`, `partial`, `bypassed` and `fetched` were merged; others were dropped.

    `duplicates` bring no contributor that is not there already, `overlaps` bring some that are and some that are not,
    `late` are of an earlier round or came after this one was reported, `refused` are not for this host and round.
    `repaired` counts contributions, in chunks, that were merged from packets that had been sent again.
    """

    complete: int = 0
    partial: int = 0
    bypassed: int = 0
    fetched: int = 0
    duplicates: int = 0
    overlaps: int = 0
    late: int = 0
    refused: int = 0
    repaired: int = 0


class RoundReceiver:
    """Takes in one round's results. `expected` is the bitmap of the contributors that shall reach every chunk."""

    def __init__(
        self,
        shard: Shard,
        epoch_and_round: tuple[int, int],
        expected: int,
        summed: NDArray[np.int32],
        bitmaps: NDArray[np.uint64],
        number_format: int = 0,
    ) -> None:
        """`summed` and `bitmaps` are the shard's part of the round's row in the exchange area; they are set to zero."""
        self.counts = Counts()
        self.expected = expected
        self.chunks = shard.chunks
        self._shard = shard
        self._epoch, self._round = epoch_and_round
        self._number_format = number_format
        self._numbers = np.dtype("<f4" if number_format == float32.NUMBER_FORMAT else "<i4")
        self._summed: NDArray[Any] = summed.view(self._numbers)
        self._bitmaps = bitmaps
        self._have = [0] * shard.chunks
        self._missing = shard.chunks if expected else 0
        summed[:] = 0
        bitmaps[:] = 0

    @property
    def complete(self) -> bool:
        """Whether every chunk has all of its expected contributors."""
        return self._missing == 0

    @property
    def delivered(self) -> int:
        """Contributions that are in the sums, counted in chunks."""
        return sum(bitmap.bit_count() for bitmap in self._have)

    def take(self, header: Header, payload: memoryview) -> bool:
        """Merge a parsed packet; returns whether it was merged. What is not is counted in `counts`."""
        counts = self.counts
        if header.job == self._shard.job and header.round < self._round:
            counts.late += 1
            return False
        if not self._is_ours(header):
            counts.refused += 1
            return False
        have = self._have[header.chunk]
        if header.bitmap & have:
            if header.bitmap & ~have:
                counts.overlaps += 1
            else:
                counts.duplicates += 1
            return False
        first, end = self._shard.value_range(header.chunk)
        self._summed[first:end] += np.frombuffer(payload, self._numbers)
        have |= header.bitmap
        self._have[header.chunk] = have
        self._bitmaps[header.chunk] = have
        if have == self.expected:
            self._missing -= 1
        if header.flags & FLAG_RETRANSMITTED:
            counts.repaired += header.contributors
        if header.kind is Kind.CONTRIBUTION:
            if header.flags & FLAG_BYPASSED:
                counts.bypassed += 1
            else:
                counts.fetched += 1
        elif header.reason is Reason.COMPLETE:
            counts.complete += 1
        else:
            counts.partial += 1
        return True

    def _is_ours(self, header: Header) -> bool:
        shard = self._shard
        if (header.job, header.epoch, header.round, header.shard) != (
            shard.job,
            self._epoch,
            self._round,
            shard.number,
        ):
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
