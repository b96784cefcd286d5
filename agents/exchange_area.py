"""Memory that an island's processes share: what the island sends and what it receives, round by round.

The trainer writes `sent`; data planes read it, and write `summed` and `bitmaps`; the trainer then adds the island's own
contribution to both. Round k lives in row k mod depth. The run itself reads the area to check every sum.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def chunk_count(values: int, values_per_chunk: int) -> int:
    """How many chunks carry `values` values; the last one may be shorter."""
    return -(-values // values_per_chunk)


@dataclass(frozen=True)
class ExchangeArea:
    """`sent` and `summed`: int32, shape (depth, values); `bitmaps`: uint64, shape (depth, chunks)."""

    sent: NDArray[np.int32]
    summed: NDArray[np.int32]
    bitmaps: NDArray[np.uint64]
    values_per_chunk: int

    @property
    def depth(self) -> int:
        return len(self.sent)

    def row(self, round_number: int) -> int:
        return round_number % self.depth


def map_exchange_area(path: Path, depth: int, values: int, values_per_chunk: int, create: bool = False) -> ExchangeArea:
    """Map the area kept in the file `path`, made anew and zero when `create` is set.

    Raises FileNotFoundError, or FileExistsError with `create`.
    """
    chunks = chunk_count(values, values_per_chunk)
    bitmap_bytes = 8 * depth * chunks
    plane_bytes = 4 * depth * values
    if create:
        with path.open("xb") as file:
            file.truncate(bitmap_bytes + 2 * plane_bytes)
    memory = np.memmap(path, dtype=np.uint8, mode="r+", shape=(bitmap_bytes + 2 * plane_bytes,))
    bitmaps = memory[:bitmap_bytes].view(np.uint64).reshape(depth, chunks)
    sent = memory[bitmap_bytes : bitmap_bytes + plane_bytes].view(np.int32).reshape(depth, values)
    summed = memory[bitmap_bytes + plane_bytes :].view(np.int32).reshape(depth, values)
    return ExchangeArea(sent, summed, bitmaps, values_per_chunk)
