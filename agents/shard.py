"""A host's part of its island's weights, and where it lies in the exchange area."""

from collections.abc import Sequence
from dataclasses import dataclass

from agents.exchange_area import chunk_count


@dataclass(frozen=True)
class Shard:
    """Shard `number` of island `island_id` in run `job`: `values` values from `first_value` on, in chunks."""

    job: int
    island_id: int
    number: int
    values: int
    first_value: int
    values_per_chunk: int

    @property
    def own_bit(self) -> int:
        return 1 << self.island_id

    @property
    def chunks(self) -> int:
        return chunk_count(self.values, self.values_per_chunk)

    @property
    def value_slice(self) -> slice:
        """The shard's values in a row of the exchange area."""
        return slice(self.first_value, self.first_value + self.values)

    @property
    def chunk_slice(self) -> slice:
        """The shard's chunks in a row of the exchange area's bitmaps."""
        first = self.first_value // self.values_per_chunk
        return slice(first, first + self.chunks)

    def value_range(self, chunk: int) -> tuple[int, int]:
        """First value and end of a chunk, counted within the shard."""
        first = chunk * self.values_per_chunk
        return first, min(first + self.values_per_chunk, self.values)


def make_shard(job: int, island_id: int, number: int, shard_values: Sequence[int], values_per_chunk: int) -> Shard:
    """Shard `number` of those that have `shard_values` values.

    Raises ValueError unless every shard but the last has whole chunks: bitmaps are kept per chunk of the area.
    """
    if any(values % values_per_chunk for values in shard_values[:-1]):
        raise ValueError(f"shard_values {list(shard_values)}: all but the last must be multiples of {values_per_chunk}")
    return Shard(
        job=job,
        island_id=island_id,
        number=number,
        values=shard_values[number],
        first_value=sum(shard_values[:number]),
        values_per_chunk=values_per_chunk,
    )
