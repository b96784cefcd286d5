"""Round times of many rounds at once, in closed form: M = 0, and M ≥ S.

Every clique is worked out once: what its streams load and how long each of them takes to get everywhere. A round is
the sum of its cliques, and T the largest root of Σ_j copies·σ/(T − P_j) = 1 over what they share (see `closed_form`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler import closed_form
from scheduler.policies.interface import Clique, Round
from scheduler.problem import Problem
from scheduler.solution import Infeasible

_Array = NDArray[np.float64]

# Rounds scored together: enough to keep numpy busy, few enough to keep the arrays in tens of megabytes.
_ENTRIES = 4_000_000


@dataclass(frozen=True)
class _CliqueData:
    rows: NDArray[np.int64]  # what is loaded,
    senders: NDArray[np.int64]  # by whom,
    work: _Array  # with copies·σ, in ms
    members: NDArray[np.int64]
    preceding: _Array  # P_j of the members; inf if the clique cannot be at this memory
    least: _Array


class RoundTimes:
    """Round times at no memory (`memory_gb` = 0) or at enough (inf); cliques are worked out when first met."""

    def __init__(self, problem: Problem, memory_gb: float) -> None:
        self._problem = problem
        self._memory_gb = memory_gb
        self._number = {island: k for k, island in enumerate(problem.islands)}
        self._row: dict[str, int] = {}
        self._cliques: dict[Clique, _CliqueData] = {}

    def __call__(self, rounds: Sequence[Round]) -> _Array:
        """T of every round, in ms; inf where a clique cannot be."""
        for cliques in rounds:
            for clique in cliques:
                if clique not in self._cliques:
                    self._cliques[clique] = self._work_out(clique)
        size = max(1, _ENTRIES // max(1, len(self._row) * len(self._number)))
        parts = [self._score(rounds[k : k + size]) for k in range(0, len(rounds), size)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _work_out(self, clique: Clique) -> _CliqueData:
        if len(clique) < 2:
            nothing, none = np.zeros(0), np.zeros(0, dtype=np.int64)
            return _CliqueData(none, none, nothing, none, nothing, nothing)
        data = self._problem.exchange((clique,), self._memory_gb)
        answer = closed_form.solve(data)
        members = np.array([self._number[sender] for sender in data.senders])
        least = np.array([data.least_duration_ms[sender] for sender in data.senders])
        if isinstance(answer, Infeasible):
            preceding = np.full(len(members), np.inf)
        else:
            preceding = np.array([answer.time_ms - answer.duration_ms[sender] for sender in data.senders])
        entries = [
            (self._row.setdefault(shared.name, len(self._row)), self._number[sender], count * shared.sigma_ms)
            for shared in data.shared
            for sender, count in shared.copies.items()
        ]
        rows, senders, work = zip(*entries, strict=True)
        return _CliqueData(np.array(rows), np.array(senders), np.array(work), members, preceding, least)

    def _score(self, rounds: Sequence[Round]) -> _Array:
        count, n = len(rounds), len(self._number)
        work = np.zeros((count, len(self._row), n))
        preceding = np.zeros((count, n))
        least = np.zeros((count, n))
        for k, cliques in enumerate(rounds):
            for clique in cliques:
                data = self._cliques[clique]
                work[k, data.rows, data.senders] += data.work
                preceding[k, data.members] = data.preceding
                least[k, data.members] = data.least
        possible = np.isfinite(preceding).all(axis=1)
        times = np.full(count, np.inf)
        times[possible] = _largest_root(work[possible], preceding[possible], least[possible])
        return times


def _largest_root(work: _Array, preceding: _Array, least: _Array) -> _Array:
    p = preceding[:, None, :]
    # Newton from below, as in the single closed form; rows without streams stay at 1 ms and out of the result.
    times = np.where(work > 0.0, p + work, 1.0).max(axis=2)
    used = (work > 0.0).any(axis=2)
    for _ in range(60):
        gap = np.where(work > 0.0, times[:, :, None] - p, 1.0)
        share = work / gap
        value = share.sum(axis=2)
        slope = (share / gap).sum(axis=2)
        step = np.where(used, (value - 1.0) / np.where(slope > 0.0, slope, 1.0), 0.0)
        times = times + np.maximum(step, 0.0)
        if (step <= 1e-12 * times).all():
            break
    shared = np.where(used, times, 0.0).max(axis=1, initial=0.0)
    answer: _Array = np.maximum(shared, np.where(least > 0.0, preceding + least, 0.0).max(axis=1))
    return answer
