"""How updates really spread: survival and mean divergence lifetime of the mixing that a run did, as in the plan.

The weights are no plan's: they are counted from the contributors that each island's applied sums had, chunk by chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MOST_PASSES = 500
_GONE = 1e-9
# A pass that leaves more than this share mixes nothing: what is left stays, such as the bias of a lost contribution.
_STUCK = 0.999
_MIXED = 1e-2


@dataclass(frozen=True)
class MeasuredDivergence:
    """S(0), S(1), … and A in rounds; None for a schedule that does not mix all islands."""

    survival: tuple[float, ...]
    mean_lifetime_rounds: float | None


def measured_divergence(mixings: Sequence[NDArray[np.float64]], period: int) -> MeasuredDivergence | None:
    """Of the whole passes (`period` rounds each) that were done, taken again and again; None if there was none.

    As planned: S(k) is the mean total variation distance from uniform of a unit update after k rounds, over (1 − 1/N),
    averaged over the rounds in which it can be born; A = Σ S(k).
    """
    rounds = len(mixings) // period * period
    if not rounds:
        return None
    stack = np.stack(mixings[:rounds])
    count = stack.shape[1]
    spreads = np.broadcast_to(np.eye(count), stack.shape)
    survival = [1.0]
    at_last_pass = 1.0
    for k in range(1, _MOST_PASSES * period + 1):
        # The spread of what is born in round b meets round b + k − 1 after k − 1 others.
        spreads = np.roll(stack, -(k - 1), axis=0) @ spreads
        survival.append(float(np.abs(spreads - 1 / count).sum(axis=1).mean() / 2 / (1 - 1 / count)))
        if survival[-1] < _GONE:
            break
        if k % period == 0:
            if survival[-1] > _STUCK * at_last_pass:
                break
            at_last_pass = survival[-1]
    return MeasuredDivergence(tuple(survival), sum(survival) if survival[-1] < _MIXED else None)
