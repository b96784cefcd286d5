"""Search among more islands than can be enumerated: designs with good labels, then changes to single rounds."""

import random
from collections.abc import Callable, Sequence

import numpy as np

from scheduler.divergence import mixing_matrix
from scheduler.errors import PolicyError
from scheduler.policies.interface import Clique, Round
from scheduler.problem import Problem
from scheduler.search.designs import Design, designs_for
from scheduler.search.labels import LabelSearch, near_order, rounds_of
from scheduler.search.lifetimes import lifetimes
from scheduler.search.pool import Pool
from scheduler.search.round_times import RoundTimes
from scheduler.search.sequences import SequenceSearch

_KEPT_DESIGNS = 4
_LONGEST_DESIGN = 5
_ORDERS = 30
# Work per search, in units that grow with what one trial costs.
_SWAPS = 500_000
_CHANGES = 400_000
_MOST_SWAPS = 1000
_MOST_CHANGES = 1500
_POOL = 60


def search_large(problem: Problem, sizes: Sequence[int], stop: Callable[[], bool]) -> tuple[float, tuple[Round, ...]]:
    """The best schedule found with cliques of these sizes, as (objective in ms, rounds)."""
    n = len(problem.islands)
    generator = random.Random(problem.seed)
    times = quick_times(problem)
    order = near_order(problem)
    found: list[tuple[float, tuple[Round, ...]]] = []
    pool: list[Round] = []
    for lifetime, design in _promising(problem, times, order, sizes, generator):
        labels = LabelSearch(times, design, order)
        labels.swap(min(_SWAPS // (n * n), _MOST_SWAPS), generator, stop)
        rounds = tuple(rounds_of(design, labels.islands))
        found.append((labels.time_ms * (lifetime + 0.5), rounds))
        pool += rounds
    if not found:
        raise PolicyError(f"policy search: no design for {n} islands has cliques of these sizes only at this memory")
    local = _LocalSearch(problem, times, sizes, *min(found))
    local.run(min(_CHANGES // (n * n), _MOST_CHANGES), generator, stop)
    pool += local.seen[-_POOL:]
    return _from_pool(problem, list(dict.fromkeys([*local.rounds, *pool]))[:_POOL], local.rounds, stop)


def quick_times(problem: Problem) -> RoundTimes:
    """Round times to choose by: exact without memory and with enough; in between, as if there were enough."""
    none = problem.memory_gb == 0.0 and problem.aggregation == "edge"
    return RoundTimes(problem, 0.0 if none else np.inf)


def _promising(
    problem: Problem, times: RoundTimes, order: list[str], sizes: Sequence[int], generator: random.Random
) -> list[tuple[float, Design]]:
    """The best designs as (lifetime, design), by their objective with islands in order of nearness."""
    ranked: list[tuple[float, float, Design]] = []
    for design in designs_for(len(order), sizes):
        lifetime, chosen = _best_order(problem, design, generator)
        objective_ms = float(times(rounds_of(chosen, order)).max()) * (lifetime + 0.5)
        if np.isfinite(objective_ms):
            ranked.append((objective_ms, lifetime, chosen))
    ranked.sort(key=lambda entry: entry[0])
    return [(lifetime, design) for _, lifetime, design in ranked[:_KEPT_DESIGNS]]


def _best_order(problem: Problem, design: Design, generator: random.Random) -> tuple[float, Design]:
    """Long designs are cut down to a few of their rounds, as mixing needs no more; the best of some random choices."""
    if len(design) <= _LONGEST_DESIGN:
        return _lifetime(problem, rounds_of(design, problem.islands)), design
    best = (_lifetime(problem, rounds_of(design, problem.islands)), design)
    for _ in range(_ORDERS):
        chosen = tuple(generator.sample(design, generator.randint(2, _LONGEST_DESIGN)))
        lifetime = _lifetime(problem, rounds_of(chosen, problem.islands))
        if lifetime < best[0]:
            best = lifetime, chosen
    return best


def _lifetime(problem: Problem, rounds: Sequence[Round], worth_at_most: float = np.inf) -> float:
    mixing = np.stack([mixing_matrix(problem.islands, cliques) for cliques in rounds])
    return float(lifetimes(mixing[None], problem.measure, worth_at_most)[0])


class _LocalSearch:
    """Changes one round at a time: islands swapped or moved between cliques, cliques merged or split."""

    def __init__(
        self,
        problem: Problem,
        times: RoundTimes,
        sizes: Sequence[int],
        objective_ms: float,
        rounds: tuple[Round, ...],
    ) -> None:
        self._problem = problem
        self._times = times
        self._sizes = frozenset(sizes)
        self.objective_ms = objective_ms
        self.rounds = rounds
        self._times_ms = list(map(float, times(rounds)))
        self.seen: list[Round] = []

    def run(self, changes: int, generator: random.Random, stop: Callable[[], bool]) -> None:
        """Try this many changes, keeping those that lower the objective."""
        for _ in range(changes):
            if stop():
                return
            # Mostly the longest round: as long as it stays, nothing else makes T shorter.
            position = generator.randrange(len(self.rounds))
            if generator.random() < 0.5:
                position = int(np.argmax(self._times_ms))
            changed = self._change(self.rounds[position], generator)
            if changed is None:
                continue
            time_ms = float(self._times([changed])[0])
            times_ms = [*self._times_ms[:position], time_ms, *self._times_ms[position + 1 :]]
            worth = self.objective_ms / max(times_ms) - 0.5
            if worth <= 1.0:
                continue
            rounds = (*self.rounds[:position], changed, *self.rounds[position + 1 :])
            objective_ms = max(times_ms) * (_lifetime(self._problem, rounds, worth) + 0.5)
            if objective_ms < self.objective_ms * (1.0 - 1e-9):
                self.objective_ms, self.rounds, self._times_ms = objective_ms, rounds, times_ms
                self.seen.append(changed)

    def _change(self, cliques: Round, generator: random.Random) -> Round | None:
        """A neighbour of a round, or None if the change is none or gives a size that is not allowed."""
        parts: list[list[str]] = [list(clique) for clique in cliques]
        busy = {island for clique in cliques for island in clique}
        parts += [[island] for island in self._problem.islands if island not in busy]
        kind = generator.choice(("swap", "move", "merge", "split"))
        a, b = generator.sample(range(len(parts)), 2) if len(parts) > 1 else (0, 0)
        if kind == "split" or a == b:
            generator.shuffle(parts[a])
            cut = generator.randrange(len(parts[a]))
            parts.append(parts[a][cut:])
            parts[a] = parts[a][:cut]
        elif kind == "merge":
            parts[a] += parts[b]
            parts[b] = []
        else:
            moving = parts[a].pop(generator.randrange(len(parts[a])))
            if kind == "swap":
                parts[a].append(parts[b].pop(generator.randrange(len(parts[b]))))
            parts[b].append(moving)
        place = {island: k for k, island in enumerate(self._problem.islands)}
        changed: list[Clique] = [tuple(sorted(part, key=place.__getitem__)) for part in parts if len(part) > 1]
        if not changed or any(len(clique) not in self._sizes for clique in changed):
            return None
        return tuple(changed)


def _from_pool(
    problem: Problem, pool_rounds: list[Round], best: Sequence[Round], stop: Callable[[], bool]
) -> tuple[float, tuple[Round, ...]]:
    """Sequences of the rounds that were good somewhere, with exact times; never worse than the best so far."""
    pool = Pool(problem, pool_rounds)
    search = SequenceSearch(pool, problem.measure, problem.seed, stop)
    number = {cliques: k for k, cliques in enumerate(pool.rounds)}
    search.consider([number[cliques] for cliques in best])
    search.extend(search.best)
    return search.best_ms, tuple(pool.rounds[k] for k in search.best or [number[cliques] for cliques in best])
