"""Which island gets which label of a design: an order by nearness, then swaps."""

import random
from collections.abc import Callable, Sequence

import numpy as np

from scheduler.policies.interface import Round
from scheduler.problem import Problem
from scheduler.search.designs import Design
from scheduler.search.round_times import RoundTimes


def near_order(problem: Problem) -> list[str]:
    """The islands in an order in which near ones are next to each other: clusters merged by mean delay, joined up."""
    islands = problem.islands
    n = len(islands)
    delay = np.array([[problem.delay_ms(a, b) if a != b else 0.0 for b in islands] for a in islands])
    mean = (delay + delay.T) / 2.0
    np.fill_diagonal(mean, np.inf)
    chains: dict[int, list[int]] = {k: [k] for k in range(n)}
    while len(chains) > 1:
        a, b = sorted(divmod(int(mean.argmin()), n))
        size_a, size_b = len(chains[a]), len(chains[b])
        joined = (mean[a] * size_a + mean[b] * size_b) / (size_a + size_b)
        mean[a], mean[:, a] = joined, joined
        mean[b], mean[:, b] = np.inf, np.inf
        mean[a, a] = np.inf
        chains[a] += chains.pop(b)
    return [islands[k] for k in next(iter(chains.values()))]


def rounds_of(design: Design, islands: Sequence[str]) -> list[Round]:
    """The design's rounds, with islands for labels."""
    return [tuple(tuple(islands[label] for label in clique) for clique in cliques) for cliques in design]


class LabelSearch:
    """Swaps islands of a design while its longest round gets shorter (or, at the same length, their sum)."""

    def __init__(
        self, times: RoundTimes, design: Design, islands: Sequence[str], groups: Sequence[Sequence[str]] | None = None
    ) -> None:
        """With `groups`, islands are swapped with others of their group only."""
        self._times = times
        self._design = design
        self.islands = list(islands)
        self.times_ms = times(rounds_of(design, self.islands))
        self._partners = {
            island: [other for other in group if other != island] for group in groups or [islands] for island in group
        }

    @property
    def time_ms(self) -> float:
        return float(self.times_ms.max())

    def swap(self, swaps: int, generator: random.Random, stop: Callable[[], bool]) -> None:
        """Try this many swaps."""
        for _ in range(swaps):
            if stop():
                return
            island = generator.choice(self.islands)
            if not self._partners[island]:
                continue
            other = generator.choice(self._partners[island])
            a, b = self.islands.index(island), self.islands.index(other)
            self.islands[a], self.islands[b] = other, island
            times_ms = self._times(rounds_of(self._design, self.islands))
            if (times_ms.max(), times_ms.sum()) < (self.times_ms.max(), self.times_ms.sum()):
                self.times_ms = times_ms
            else:
                self.islands[a], self.islands[b] = island, other
