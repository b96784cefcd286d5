"""All one- and two-round schedules of a pool, with pruning."""

from collections.abc import Callable, Generator

import numpy as np
from numpy.typing import NDArray

from scheduler.search.bounds import left_over
from scheduler.search.lifetimes import lifetimes
from scheduler.search.pool import Pool

_BATCH = 4000


def one_and_two_rounds(pool: Pool, measure: str, best_ms: float, stop: Callable[[], bool]) -> list[int] | None:
    """The rounds of the best schedule of one or two rounds whose objective is below `best_ms`; None if none is.

    Pairs are taken in order of their longer round. What two clique sizes can reach at best rules most of them out;
    the rest is worked out in batches. Gives up, with what it has, when `stop` says so.
    """
    found: list[int] | None = None
    batches = _batches(pool, best_ms)
    pairs = next(batches, None)
    while pairs is not None and not stop():
        longer_ms = pool.times_ms[pairs].max(axis=1)
        lifetime = lifetimes(pool.mixing[pairs], measure, float((best_ms / longer_ms).max()) - 0.5)
        objective = longer_ms * (lifetime + 0.5)
        for k in np.argsort(objective, kind="stable"):
            if objective[k] >= best_ms or stop():
                break
            exact_ms = max(pool.solve(int(i)) for i in pairs[k]) * float(lifetime[k] + 0.5)
            if exact_ms < best_ms:
                best_ms, found = exact_ms, sorted({int(i) for i in pairs[k]})
        try:
            pairs = batches.send(best_ms)
        except StopIteration:
            break
    return found


def _batches(pool: Pool, best_ms: float) -> Generator[NDArray[np.int64], float, None]:
    """Pairs that may be better than an objective; what is found meanwhile is sent in."""
    n = pool.sizes.shape[1]
    largest = pool.sizes.max(axis=1).astype(int)
    # missing[p, r]: what is missing, at best, after round p and rounds that spread it r-fold.
    missing = np.stack([left_over(pool.sizes, reach) for reach in range(n + 1)], axis=1)
    waiting: list[NDArray[np.int64]] = []
    count = 0
    for j in range(len(pool)):
        worth = best_ms / pool.times_ms[j] - 0.5
        if worth < 1.0:
            break
        i = np.arange(j + 1)
        bound = 1.0 + (missing[i, 1] + missing[j, 1]) / 2.0
        bound += (missing[i, largest[j]] + missing[j, largest[i]]) / 2.0
        both = np.minimum(n, largest[j] * largest[i])
        bound += (missing[i, both] + missing[j, both]) / 2.0
        kept = i[bound < worth]
        waiting.append(np.stack([kept, np.full(len(kept), j)], axis=1))
        count += len(kept)
        if count >= _BATCH:
            best_ms = yield np.concatenate(waiting)
            waiting, count = [], 0
    if count:
        yield np.concatenate(waiting)
