"""Is what was applied what was sent? Every chunk of every island, recomputed from the exchange areas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents.exchange_area import ExchangeArea


@dataclass(frozen=True)
class RoundCheck:
    """`exact`: every applied sum equals the integer sum of what its recorded contributors sent.

    `mixing[i, j]`: the weight that island j's contribution really had in what island i applied, over all its values.
    """

    exact: bool
    mixing: NDArray[np.float64]


def check_round(areas: Sequence[ExchangeArea], cliques: Mapping[int, int], round_number: int) -> RoundCheck:
    """Recompute a round's sums. `areas` by island id; `cliques` maps island id to the bitmap of its clique."""
    count = len(areas)
    row = areas[0].row(round_number)
    mixing = np.zeros((count, count))
    whole_sums: dict[int, NDArray[np.int64]] = {}
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
            if int(bitmap) not in whole_sums:
                whole_sums[int(bitmap)] = _sum(areas, contributors, row)
            if chosen.all():
                exact &= np.array_equal(area.summed[row], whole_sums[int(bitmap)])
            else:
                values = np.repeat(chosen, lengths)
                exact &= np.array_equal(area.summed[row][values], whole_sums[int(bitmap)][values])
    return RoundCheck(bool(exact), mixing)


def _sum(areas: Sequence[ExchangeArea], contributors: Sequence[int], row: int) -> NDArray[np.int64]:
    total = np.zeros(areas[0].sent.shape[1], dtype=np.int64)
    for contributor in contributors:
        total += areas[contributor].sent[row]
    return total


def _bits(bitmap: int) -> list[int]:
    return [bit for bit in range(bitmap.bit_length()) if bitmap >> bit & 1]


def measured_lifetime(mixings: Sequence[NDArray[np.float64]], period: int) -> float | None:
    """Mean divergence lifetime A, in rounds, of the mixing that really happened; None if the run was too short for it.

    As in the plan: S(k) = mean total variation distance from uniform of a unit update after k rounds over (1 − 1/N),
    averaged over births at every place of the first pass of `period` rounds; A = Σ S(k).
    """
    count = len(mixings[0])
    births = min(period, len(mixings))
    lifetimes = []
    for birth in range(births):
        spread = np.eye(count)
        lifetime = 0.0
        for mixing in [*mixings[birth:], None]:
            survival = float(np.abs(spread - 1 / count).sum(axis=0).mean() / 2 / (1 - 1 / count))
            lifetime += survival
            if survival < 1e-3 or mixing is None:
                break
            spread = mixing @ spread
        if survival >= 1e-3:
            return None
        lifetimes.append(lifetime)
    return sum(lifetimes) / births
