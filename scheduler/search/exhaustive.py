"""All one- and two-round schedules of a pool, with pruning."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scheduler.search.bounds import left_over
from scheduler.search.lifetimes import lifetimes
from scheduler.search.pool import Pool

_BATCH = 4000
# Rounds whose times need more than a closed form: so many are solved, most promising schedules first.
_SOLVES = 1000
# Loose bounds leave more pairs than can be looked at: those with the shortest rounds come first.
_PAIRS = 1_000_000


def one_and_two_rounds(pool: Pool, measure: str, best_ms: float, stop: Callable[[], bool]) -> list[int] | None:
    """The rounds of the best schedule of one or two rounds whose objective is below `best_ms`; None if none is.

    What the sizes of two rounds' cliques can reach at best rules most pairs out; the lifetimes of the rest are worked
    out in batches, and schedules are then gone through in order of the objective that they have if the quick bounds
    on their round times are exact. Gives up, with what it has, when `stop` says so.
    """
    pairs, lifetime = _survivors(pool, measure, best_ms, stop)
    objective = pool.times_ms[pairs].max(axis=1) * (lifetime + 0.5)
    found: list[int] | None = None
    solved = 0
    for k in np.argsort(objective, kind="stable"):
        if objective[k] >= best_ms or solved >= _SOLVES or stop():
            break
        for i in pairs[k]:
            # The second is not worth solving if the first alone is too long.
            if pool.times_ms[pairs[k]].max() * (lifetime[k] + 0.5) < best_ms and not pool.exact[i]:
                pool.solve(int(i))
                solved += 1
        if pool.exact[pairs[k]].all():
            exact_ms = float(pool.times_ms[pairs[k]].max() * (lifetime[k] + 0.5))
            if exact_ms < best_ms:
                best_ms, found = exact_ms, sorted({int(i) for i in pairs[k]})
    return found


def _survivors(
    pool: Pool, measure: str, best_ms: float, stop: Callable[[], bool]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Pairs of rounds that may be better than an objective, and their lifetimes."""
    n = pool.sizes.shape[1]
    largest = pool.sizes.max(axis=1).astype(int)
    # missing[p, r]: what is missing, at best, after round p and rounds that spread it r-fold.
    missing = np.stack([left_over(pool.sizes, reach) for reach in range(n + 1)], axis=1)
    waiting: list[NDArray[np.int64]] = []
    kept_pairs: list[NDArray[np.int64]] = [np.zeros((0, 2), dtype=np.int64)]
    kept_lifetimes: list[NDArray[np.float64]] = [np.zeros(0)]

    def work_out() -> None:
        pairs = np.concatenate(waiting)
        waiting.clear()
        longer_ms = pool.times_ms[pairs].max(axis=1)
        lifetime = lifetimes(pool.mixing[pairs], measure, float((best_ms / longer_ms).max()) - 0.5)
        hopeful = longer_ms * (lifetime + 0.5) < best_ms
        kept_pairs.append(pairs[hopeful])
        kept_lifetimes.append(lifetime[hopeful])

    count = total = 0
    for j in range(len(pool)):
        # Times only grow when they become exact, so all further rounds are too long as well.
        if best_ms / pool.lower_ms[j] - 0.5 < 1.0 or total >= _PAIRS or stop():
            break
        worth = best_ms / pool.times_ms[j] - 0.5
        i = np.arange(j + 1)
        bound = 1.0 + (missing[i, 1] + missing[j, 1]) / 2.0
        bound += (missing[i, largest[j]] + missing[j, largest[i]]) / 2.0
        both = np.minimum(n, largest[j] * largest[i])
        bound += (missing[i, both] + missing[j, both]) / 2.0
        kept = i[bound < worth]
        if len(kept):
            waiting.append(np.stack([kept, np.full(len(kept), j)], axis=1))
            count += len(kept)
        if count >= _BATCH:
            work_out()
            total, count = total + count, 0
    if count:
        work_out()
    return np.concatenate(kept_pairs), np.concatenate(kept_lifetimes)
