"""Is what was applied what was sent? Every chunk of every island, recomputed from the exchange areas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents import float32
from agents.exchange_area import ExchangeArea

_Values = slice | NDArray[np.bool_]


@dataclass(frozen=True)
class RoundCheck:
    """`exact`: every applied sum equals the integer sum of what its recorded contributors sent. In number format
    f32: it differs from their true sum by no more than rounding in any order allows.

    `mixing[i, j]`: the weight that island j's contribution really had in what island i applied, over all its values.
    """

    exact: bool
    mixing: NDArray[np.float64]


def check_round(
    areas: Sequence[ExchangeArea], cliques: Mapping[int, int], round_number: int, number_format: int = 0
) -> RoundCheck:
    """Recompute a round's sums. `areas` by island id; `cliques` maps island id to the bitmap of its clique."""
    count = len(areas)
    row = areas[0].row(round_number)
    mixing = np.zeros((count, count))
    is_right = _FloatCheck(areas, row) if number_format == float32.NUMBER_FORMAT else _IntegerCheck(areas, row)
    exact = True
    for island, area in enumerate(areas):
        bitmaps = area.bitmaps[row]
        starts = np.arange(len(bitmaps)) * area.values_per_chunk
        lengths = np.diff(np.append(starts, area.sent.shape[1]))
        for bitmap in np.unique(bitmaps):
            contributors = _bits(int(bitmap))
            if not contributors or int(bitmap) & ~cliques[island] or not int(bitmap) >> island & 1:
                exact = False  # outside the clique, or without the island's own
                continue
            chosen = bitmaps == bitmap
            mixing[island, contributors] += lengths[chosen].sum() / lengths.sum() / len(contributors)
            values = slice(None) if chosen.all() else np.repeat(chosen, lengths)
            exact &= is_right(area.summed[row], int(bitmap), values)
    return RoundCheck(bool(exact), mixing)


class _IntegerCheck:
    """Whether sums equal those of what was sent; a sum of each set of contributors is worked out once."""

    def __init__(self, areas: Sequence[ExchangeArea], row: int) -> None:
        self._sent = [area.sent[row] for area in areas]
        self._sums: dict[int, NDArray[np.int64]] = {}

    def __call__(self, summed: NDArray[np.int32], bitmap: int, values: _Values) -> bool:
        if bitmap not in self._sums:
            total = np.zeros_like(self._sent[0], np.int64)
            for contributor in _bits(bitmap):
                total += self._sent[contributor]
            self._sums[bitmap] = total
        return np.array_equal(summed[values], self._sums[bitmap][values])


class _FloatCheck:
    """Whether sums of floats are within the bound of n additions in any order: n · 2^−24 · Σ|x|."""

    def __init__(self, areas: Sequence[ExchangeArea], row: int) -> None:
        self._sent = [area.sent[row].view(np.float32).astype(np.float64) for area in areas]
        self._sums: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}

    def __call__(self, summed: NDArray[np.int32], bitmap: int, values: _Values) -> bool:
        if bitmap not in self._sums:
            chosen = [self._sent[i] for i in _bits(bitmap)]
            bound = len(chosen) * 2.0**-24 * np.abs(chosen).sum(axis=0)
            self._sums[bitmap] = np.sum(chosen, axis=0), bound
        total, bound = self._sums[bitmap]
        error = np.abs(summed.view(np.float32)[values] - total[values])
        return bool((error <= bound[values]).all())


def _bits(bitmap: int) -> list[int]:
    return [bit for bit in range(bitmap.bit_length()) if bitmap >> bit & 1]
