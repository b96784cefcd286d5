"""`search`: looks for the schedule with the smallest objective T·(A + 1/2), and says what cannot be beaten.

Up to nine islands: all partitions are scored; sequences of them are searched by beams and descents; then all one- and
two-round schedules are gone through, with pruning. Beyond: designs (grids, Kirkman triples, one-factorisations) with
optimised labels, then local search over mixed clique sizes. The work is bounded by counts, so one seed gives one
schedule; a time limit only cuts it short.
"""

from collections.abc import Callable, Collection

from scheduler.errors import PolicyError
from scheduler.policies.interface import Schedule
from scheduler.problem import Problem
from scheduler.search.bounds import (
    BOUNDED_MEASURES,
    connecting_time_ms,
    large_objective_bound_ms,
    objective_bound_ms,
)
from scheduler.search.exhaustive import one_and_two_rounds
from scheduler.search.large import search_large
from scheduler.search.partitions import partitions
from scheduler.search.pool import Pool
from scheduler.search.sequences import SequenceSearch

ENUMERATED_ISLANDS = 9
_FEW_CAPS = (1.15, 1.2, 1.3, 2.4)


class Search:
    """The best schedule found. `clique_sizes` restricts the cliques (islands may be idle)."""

    name = "search"

    def __init__(
        self,
        clique_sizes: Collection[int] | None = None,
        time_limit_s: float | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`clock` gives seconds, and is asked only when there is a time limit."""
        if clique_sizes is not None and (not clique_sizes or min(clique_sizes) < 2):
            raise PolicyError("clique sizes are whole numbers of at least 2")
        self._sizes = frozenset(clique_sizes) if clique_sizes is not None else None
        self._time_limit_s = time_limit_s
        self._clock = clock

    def schedule(self, problem: Problem) -> Schedule:
        n = len(problem.islands)
        sizes = sorted(size for size in (self._sizes or range(2, n + 1)) if size <= n)
        if not sizes:
            raise PolicyError(f"policy search: no clique of {min(self._sizes or {n})} islands among {n}")
        stop = self._stopper()
        if n <= ENUMERATED_ISLANDS:
            return self._small(problem, sizes, stop)
        objective_ms, rounds = search_large(problem, sizes, stop)
        bound = large_objective_bound_ms(problem, sizes) if problem.measure in BOUNDED_MEASURES else None
        return Schedule(rounds, _proven(objective_ms, bound), bound)

    def _small(self, problem: Problem, sizes: list[int], stop: Callable[[], bool]) -> Schedule:
        pool = Pool(problem, list(partitions(problem.islands, sizes)))
        if not len(pool):
            raise PolicyError("policy search: no round with these clique sizes can do without aggregator memory")
        connecting_ms = connecting_time_ms(problem)
        search = SequenceSearch(pool, problem.measure, problem.seed, stop)
        if problem.trees == "optimised":
            # Rounds are dear there. Schedules that are good on shortest-delay trees come cheap, and rule out much.
            search.consider(_on_shortest_trees(problem, pool, connecting_ms, stop))
            search.extend(search.best)
        else:
            search.run(connecting_ms)
        search.consider(one_and_two_rounds(pool, problem.measure, search.best_ms, stop))
        if problem.trees == "optimised":
            search.extend(search.best)
        if search.best is None:
            raise PolicyError("policy search: found no schedule that mixes all islands; allow it more time or sizes")
        bound = None
        if problem.measure in BOUNDED_MEASURES:
            bound = objective_bound_ms(pool.lower_ms, pool.sizes, connecting_ms)
        return Schedule(
            tuple(pool.rounds[k] for k in _without_repeats(search.best)), _proven(search.best_ms, bound), bound
        )

    def _stopper(self) -> Callable[[], bool]:
        if self._time_limit_s is None or self._clock is None:
            return lambda: False
        clock, deadline = self._clock, self._clock() + self._time_limit_s
        return lambda: clock() >= deadline


def _on_shortest_trees(
    problem: Problem, pool: Pool, connecting_ms: float, stop: Callable[[], bool]
) -> list[int] | None:
    plain = Pool(problem.with_trees("shortest"), pool.rounds)
    search = SequenceSearch(plain, problem.measure, problem.seed, stop)
    search.run(connecting_ms, _FEW_CAPS)
    if search.best is None:
        return None
    number = {cliques: k for k, cliques in enumerate(pool.rounds)}
    return [number[plain.rounds[k]] for k in search.best]


def _without_repeats(rounds: list[int]) -> list[int]:
    for period in range(1, len(rounds)):
        if len(rounds) % period == 0 and rounds == rounds[:period] * (len(rounds) // period):
            return rounds[:period]
    return rounds


def _proven(objective_ms: float, bound_ms: float | None) -> bool:
    return bool(
        bound_ms is not None and bound_ms >= objective_ms * (1.0 - 1e-6)
    )  # of numpy's numbers, which JSON does not take
