"""What one host knows of its island's sums: its own shard from the edge, the others' from the other hosts.

The first host's memory is the island's exchange area, from which the trainer goes on. The others have memory of their
own, so that every shard that is applied has crossed the LAN.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from agents.exchange_area import ExchangeArea
from agents.lan import Gathered
from agents.shard import Shard


class IslandMemory:
    """`summed` (int32, per value) and `bitmaps` (uint64, per chunk) of one round at a time, all shards."""

    def __init__(self, shards: list[Shard], own: int, area: ExchangeArea) -> None:
        self._shards = shards
        self._own = own
        self._area = area
        self.summed: NDArray[np.int32] = np.zeros(area.summed.shape[1:], np.int32)
        self.bitmaps: NDArray[np.uint64] = np.zeros(area.bitmaps.shape[1:], np.uint64)
        self._missing: set[int] = set()
        self.round = -1

    @property
    def shard(self) -> Shard:
        return self._shards[self._own]

    @property
    def complete(self) -> bool:
        """Whether the shards of all other hosts are here."""
        return not self._missing

    def begin(self, round_number: int) -> None:
        """Forget the round before."""
        if self._own == 0:
            row = self._area.row(round_number)
            self.summed, self.bitmaps = self._area.summed[row], self._area.bitmaps[row]
        self.summed[:] = 0
        self.bitmaps[:] = 0
        self.round = round_number
        self._missing = set(range(len(self._shards))) - {self._own}

    def own_part(self) -> bytes:
        """The own shard, as other hosts take it in."""
        shard = self.shard
        sums = self.summed[shard.value_slice].astype("<i4", copy=False).tobytes()
        return sums + self.bitmaps[shard.chunk_slice].astype("<u8", copy=False).tobytes()

    def take(self, part: Gathered) -> None:
        """Take in another host's shard; what is of another round is too late. Raises ValueError for a wrong size."""
        if part.round != self.round or part.shard not in self._missing:
            return
        shard = self._shards[part.shard]
        bitmaps_at = 4 * shard.values
        if len(part.content) != bitmaps_at + 8 * shard.chunks:
            raise ValueError(f"shard {part.shard} of round {part.round} came with {len(part.content)} bytes")
        self.summed[shard.value_slice] = np.frombuffer(part.content[:bitmaps_at], "<i4")
        self.bitmaps[shard.chunk_slice] = np.frombuffer(part.content[bitmaps_at:], "<u8")
        self._missing.discard(part.shard)

    def digest(self) -> str:
        """BLAKE2b of all sums and bitmaps: equal at all hosts of an island."""
        digest = hashlib.blake2b(np.ascontiguousarray(self.summed).data, digest_size=16)
        digest.update(np.ascontiguousarray(self.bitmaps).data)
        return digest.hexdigest()
