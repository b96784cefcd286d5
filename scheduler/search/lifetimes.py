"""Mean divergence lifetimes of many schedules at once, accurate enough to choose by."""

import numpy as np
from numpy.typing import NDArray

from scheduler.divergence import MEASURES

_Array = NDArray[np.float64]

_NEGLIGIBLE = 1e-9
_MAX_ROUNDS = 400


def lifetimes(mixing: _Array, measure: str = "total-variation", worth_at_most: float = np.inf) -> _Array:
    """A of schedules given as mixing matrices: schedules × rounds × N × N.

    What exceeds `worth_at_most` is not followed to its end: it is reported as inf, as is what mixes too slowly to
    tell from never.
    """
    of = MEASURES[measure]
    count, period = mixing.shape[:2]
    total = np.ones(count)
    answer = np.full(count, np.inf)
    alive = np.arange(count)
    spreads = np.broadcast_to(np.eye(mixing.shape[-1]), mixing.shape)
    previous = np.full(count, np.inf)
    for _ in range(-(-_MAX_ROUNDS // period)):
        this_pass = np.zeros(len(alive))
        for k in range(period):
            spreads = np.roll(mixing[alive], -k, axis=1) @ spreads
            this_pass += of(spreads).mean(axis=1)
        total[alive] += this_pass
        ratio = this_pass / np.maximum(previous, 1e-300)
        rest = np.where(ratio < 1.0, this_pass * ratio / np.maximum(1.0 - ratio, 1e-12), 0.0)
        done = this_pass <= _NEGLIGIBLE
        answer[alive[done]] = (total[alive] + rest)[done]
        going = ~done & (total[alive] <= worth_at_most)
        alive, spreads, previous = alive[going], spreads[going], this_pass[going]
        if not len(alive):
            break
    return answer
