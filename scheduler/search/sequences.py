"""Longer schedules from a pool: beam search over sequences, and descent by exchanging one round at a time."""

import random
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from scheduler.search.lifetimes import lifetimes
from scheduler.search.pool import Pool

# T of the longest round allowed, relative to the shortest with which all islands can mix.
CAPS = (1.05, 1.15, 1.2, 1.28, 1.4, 1.6, 2.0, 2.4)
_LENGTHS = (2, 3, 4, 5, 6)
_CHOICES = 260
_STARTS = 2
_BEAM = 3
_EXTENSION_CAPS = (1.0 + 1e-9, 1.1)
_EXTENSIONS = 3


class SequenceSearch:
    """Searches one pool; keeps the best schedule found, as `best_ms` and `best` (rounds of the pool)."""

    def __init__(self, pool: Pool, measure: str, seed: int, stop: Callable[[], bool]) -> None:
        self._pool = pool
        self._measure = measure
        self._random = random.Random(seed)
        self._stop = stop
        self.best_ms = float("inf")
        self.best: list[int] | None = None

    def consider(self, rounds: Sequence[int] | None) -> None:
        """Take a schedule from elsewhere as the best so far, if it is."""
        if rounds is None:
            return
        lifetime = float(lifetimes(self._pool.mixing[list(rounds)][None], self._measure)[0])
        objective_ms = max(self._pool.solve(k) for k in rounds) * (lifetime + 0.5)
        if objective_ms < self.best_ms * (1.0 - 1e-9):
            self.best_ms, self.best = objective_ms, list(rounds)

    def run(self, connecting_ms: float, caps: Sequence[float] = CAPS) -> None:
        """Under rising caps on the round time: descents from random pairs, then longer sequences from the best ones."""
        least_ms = max(connecting_ms, float(self._pool.times_ms[0]))
        tried = 0
        for cap in caps:
            up_to = int(np.searchsorted(self._pool.lower_ms, cap * least_ms, side="right"))
            if up_to == tried or cap * least_ms * 1.5 > 2.0 * self.best_ms or self._stop():
                continue
            tried = up_to
            self._under_cap(self._pool.coarsest(up_to, _CHOICES))
        if self.best is None and tried < len(self._pool) and not self._stop():
            self._under_cap(self._pool.coarsest(len(self._pool), _CHOICES))

    def extend(self, rounds: Sequence[int] | None) -> None:
        """Longer sequences from one that is known, of rounds that are hardly longer than its longest."""
        if rounds is None:
            return
        longest_ms = max(self._pool.solve(k) for k in rounds)
        for cap in _EXTENSION_CAPS * _EXTENSIONS:
            up_to = int(np.searchsorted(self._pool.lower_ms, cap * longest_ms, side="right"))
            choices = self._pool.coarsest(up_to, _CHOICES)
            self._longer([self._descend(list(rounds), choices)], choices)

    def _under_cap(self, choices: NDArray[np.int64]) -> None:
        starts = [[int(self._random.choice(choices)) for _ in range(_LENGTHS[0])] for _ in range(_STARTS)]
        self._longer([self._descend(start, choices) for start in starts], choices)

    def _longer(self, found: list[tuple[float, list[int]]], choices: NDArray[np.int64]) -> None:
        beam = sorted(found)
        while len(beam[0][1]) < _LENGTHS[-1]:
            longer: list[tuple[float, list[int]]] = []
            for _, rounds in beam:
                # The new round may go anywhere: the cycle is opened at a random place.
                cut = self._random.randrange(len(rounds))
                added = int(self._random.choice(choices))
                longer.append(self._descend([*rounds[cut:], *rounds[:cut], added], choices))
            fresh = [int(self._random.choice(choices)) for _ in range(len(beam[0][1]) + 1)]
            longer.append(self._descend(fresh, choices))
            if self._stop():
                return
            beam = sorted(longer)[:_BEAM]

    def _descend(self, rounds: list[int], choices: NDArray[np.int64]) -> tuple[float, list[int]]:
        current_ms = float("inf")
        improved = True
        while improved:
            improved = False
            for position in self._random.sample(range(len(rounds)), len(rounds)):
                if self._stop():
                    break
                better_ms, choice = self._exchange(rounds, position, choices, current_ms)
                if choice is not None:
                    current_ms, improved = better_ms, True
                    rounds[position] = choice
        if current_ms < self.best_ms * (1.0 - 1e-9):
            self.best_ms, self.best = current_ms, list(rounds)
        return current_ms, rounds

    def _exchange(
        self, rounds: Sequence[int], position: int, choices: NDArray[np.int64], current_ms: float
    ) -> tuple[float, int | None]:
        """The best other round for this position, if it makes the schedule better."""
        pool = self._pool
        others_ms = max((pool.solve(k) for at, k in enumerate(rounds) if at != position), default=0.0)
        times_ms = np.maximum(pool.times_ms[choices], others_ms)
        hopeful = times_ms * 1.5 < current_ms
        candidates, times_ms = choices[hopeful], times_ms[hopeful]
        if not len(candidates):
            return current_ms, None
        mixing = np.repeat(pool.mixing[list(rounds)][None], len(candidates), axis=0)
        mixing[:, position] = pool.mixing[candidates]
        worth = current_ms / float(times_ms.min()) - 0.5
        lifetime = lifetimes(mixing, self._measure, worth)
        objective = times_ms * (lifetime + 0.5)
        for k in np.argsort(objective, kind="stable"):
            if not objective[k] < current_ms * (1.0 - 1e-9) or self._stop():
                break
            exact_ms = max(others_ms, pool.solve(int(candidates[k]))) * float(lifetime[k] + 0.5)
            if exact_ms < current_ms * (1.0 - 1e-9):
                # A bound may have hidden a better one further down; the next sweep will see it.
                return exact_ms, int(candidates[k])
        return current_ms, None
