"""The rounds that a search chooses from, in order of a quick lower bound on their times.

Where the quick answer is exact (closed form, shortest-delay trees) nothing else is needed; elsewhere (memory in
between, optimised trees) a round is solved when a search is about to choose it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler.divergence import mixing_matrix
from scheduler.policies.interface import Round
from scheduler.problem import Problem
from scheduler.search.bounds import tree_free_times_ms
from scheduler.search.round_times import RoundTimes


class Pool:
    """Rounds with times (`times_ms`: exact where `exact`, else a lower bound), mixing matrices and clique sizes."""

    def __init__(self, problem: Problem, rounds: Sequence[Round]) -> None:
        self._problem = problem
        lower, exact = _quick_times_ms(problem, rounds)
        order = [int(k) for k in np.argsort(lower, kind="stable") if np.isfinite(lower[k])]
        self.rounds = [rounds[k] for k in order]
        self.times_ms = lower[order]
        self.exact = exact[order]
        self.mixing = np.stack([mixing_matrix(problem.islands, cliques) for cliques in self.rounds])
        self.sizes: NDArray[np.float64] = 1.0 / np.einsum("pii->pi", self.mixing)
        self.lower_ms = self.times_ms.copy()

    def __len__(self) -> int:
        return len(self.rounds)

    def solve(self, k: int) -> float:
        """The exact time of round k, in ms; inf if it cannot be."""
        if not self.exact[k]:
            self.times_ms[k] = self._problem.round_time_ms(self.rounds[k])
            self.exact[k] = True
        return float(self.times_ms[k])

    def coarsest(self, up_to: int, most: int) -> NDArray[np.int64]:
        """Of the first `up_to` rounds those that no other one of them contains, at most `most`, the fullest first."""
        together = (self.mixing[:up_to] > 0.0).reshape(up_to, -1).astype(np.float32)
        contained = together @ (1.0 - together).T == 0.0
        alone = np.nonzero(contained.sum(axis=1) == 1)[0]
        fullest = np.argsort(-together[alone].sum(axis=1), kind="stable")[:most]
        chosen: NDArray[np.int64] = np.sort(alone[fullest])
        return chosen


def _quick_times_ms(problem: Problem, rounds: Sequence[Round]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Lower bounds, and whether they are exact."""
    share = problem.memory_gb / problem.payload_gb
    enough = share >= 1.0 or problem.aggregation == "host"
    closed = (enough or share == 0.0) and not problem.equal_rates
    shortest = RoundTimes(problem, 0.0 if share == 0.0 and not enough else np.inf)(rounds)
    if problem.trees == "shortest":
        return shortest, np.full(len(rounds), closed)
    bound = tree_free_times_ms(problem, rounds)
    # Where the shortest-delay trees reach the bound, there is nothing to optimise.
    return bound, closed & (shortest <= bound * (1.0 + 1e-9))
