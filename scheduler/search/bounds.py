"""What cannot be beaten: round times that hold for any trees, and objectives that hold for any schedule.

Round times: whatever its tree, a stream needs its shortest delay and then its payload's time on the best links; and
into any set X of islands, k streams from outside that have a receiver inside need T ≥ the root of
Σ_{e into X} c_e·max(T − d_e, 0) = k·S.

Objectives: after k rounds with cliques of at most g an update has reached at most g^k islands, so its total variation
is at least 1 − g^k/N; and a schedule that mixes globally has, across every cut, a clique with members on both sides.
Bounds on A hold for total variation, and for coverage, which is never less than the share not yet reached.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from scheduler.exchange import MS_PER_GB_AT_1_GBPS
from scheduler.policies.interface import Round
from scheduler.problem import Problem
from scheduler.topology import CoreLink, Topology

_Array = NDArray[np.float64]
BOUNDED_MEASURES = ("total-variation", "coverage")
_CHUNK = 2000


def pair_bounds_ms(problem: Problem) -> _Array:
    """For ordered pairs of islands: shortest delay, plus the payload's time on the best links in and out."""
    work = problem.payload_gb * MS_PER_GB_AT_1_GBPS
    leaving = _best_rates(problem.topology, outwards=True)
    entering = _best_rates(problem.topology, outwards=False)
    islands = problem.topology.islands
    bound = np.zeros((len(islands), len(islands)))
    for a, source in enumerate(islands):
        for b, target in enumerate(islands):
            if a != b:
                rate = min(leaving[source.id], entering[target.id], source.access_up_gbps, target.access_down_gbps)
                bound[a, b] = problem.delay_ms(source.id, target.id) + work / rate
    return bound


def _best_rates(topology: Topology, *, outwards: bool) -> dict[str, float]:
    rates: dict[str, float] = {}
    for link in topology.links:
        end = link.source if outwards else link.target
        rates[end] = max(rates.get(end, 0.0), link.rate_gbps)
    return rates


def tree_free_times_ms(problem: Problem, rounds: Sequence[Round]) -> _Array:
    """A lower bound on T for each round, whatever the trees and the memory. For up to about ten islands: all cuts."""
    islands = problem.islands
    n = len(islands)
    number = {island: k for k, island in enumerate(islands)}
    pairs = np.maximum(pair_bounds_ms(problem), pair_bounds_ms(problem).T)
    together = np.zeros((len(rounds), n, n), dtype=np.float32)
    for k, cliques in enumerate(rounds):
        for clique in cliques:
            members = [number[island] for island in clique]
            together[k][np.ix_(members, members)] = 1.0
    together[:, np.arange(n), np.arange(n)] = 0.0
    sets = np.array([[x >> k & 1 for k in range(n)] for x in range(1, 2**n - 1)], dtype=np.float32)
    roots = np.array([_roots_ms(problem, {islands[k] for k in np.nonzero(inside)[0]}) for inside in sets])
    bound: _Array = (together * pairs).max(axis=(1, 2)).astype(float)
    for start in range(0, len(rounds), _CHUNK):
        mates_inside = np.einsum("pij,xj->pxi", together[start : start + _CHUNK], sets, optimize=True) > 0.0
        entering = (mates_inside & (sets == 0.0)[None]).sum(axis=2)
        cut = roots[np.arange(len(sets))[None, :], entering].max(axis=1)
        bound[start : start + _CHUNK] = np.maximum(bound[start : start + _CHUNK], cut)
    return bound


def _roots_ms(problem: Problem, inside: set[str]) -> list[float]:
    """For k = 0 … N streams into this set: the smallest T that the links into it allow."""
    into = [link for link in problem.topology.links if link.target in inside and link.source not in inside]
    return [_root_ms(into, k * problem.payload_gb * MS_PER_GB_AT_1_GBPS) for k in range(len(problem.islands) + 1)]


def _root_ms(links: Sequence[CoreLink], work: float) -> float:
    if work <= 0.0 or not links:
        return 0.0
    # Piecewise linear and rising: fill up in order of delay until the work is done before the next link helps.
    by_delay = sorted((link.one_way_delay_ms, link.rate_gbps) for link in links)
    rate = weighted = 0.0
    for k, (delay, link_rate) in enumerate(by_delay):
        rate += link_rate
        weighted += link_rate * delay
        time_ms = (work + weighted) / rate
        if k + 1 == len(by_delay) or time_ms <= by_delay[k + 1][0]:
            return time_ms
    raise AssertionError("unreachable: the last link always returns")


def connecting_time_ms(problem: Problem) -> float:
    """T of every schedule that mixes globally: the largest pair bound that no way to connect all islands avoids."""
    n = len(problem.islands)
    bound = pair_bounds_ms(problem)
    edges = sorted((max(bound[a, b], bound[b, a]), a, b) for a, b in combinations(range(n), 2))
    leader = list(range(n))
    needed = 0.0
    for time_ms, a, b in edges:
        if leader[a] != leader[b]:
            old, new = leader[a], leader[b]
            leader = [new if x == old else x for x in leader]
            needed = time_ms
    return needed


def left_over(sizes: _Array, reach: int) -> _Array:
    """Share of an update that is still missing when islands in cliques of these sizes have spread it `reach` times
    further: mean over islands (last axis), as total variation."""
    n = sizes.shape[-1]
    value: _Array = np.maximum(0.0, n - sizes * reach).mean(axis=-1) / (n - 1)
    return value


def lifetime_bound(sizes: _Array, largest: int) -> _Array:
    """Lower bound on the lifetime of what is born in a round with these clique sizes per island (last axis), when no
    round of the schedule has a clique above `largest`."""
    n = sizes.shape[-1]
    total = 1.0 + left_over(sizes, 1)
    reach = max(largest, 2)
    while reach < n:
        total = total + left_over(sizes, reach)
        reach *= max(largest, 2)
    value: _Array = np.asarray(total)
    return value


def objective_bound_ms(times_ms: _Array, sizes: _Array, connecting_ms: float) -> float:
    """Lower bound on the objective of any schedule made of rounds with these times and clique sizes per island.

    A schedule whose longest round is the k-th in order of time has that round's T, uses only rounds up to it, and
    cannot have a shorter lifetime than the best of them allows.
    """
    order = np.argsort(times_ms, kind="stable")
    best = np.inf
    largest = 0
    lifetime = np.inf
    for k in order:
        if times_ms[k] * 1.5 >= best:
            break
        largest_here = int(sizes[k].max())
        if largest_here > largest:
            # Larger cliques loosen the bound of all rounds so far.
            largest = largest_here
            so_far = order[: int(np.nonzero(order == k)[0][0]) + 1]
            lifetime = float(lifetime_bound(sizes[so_far], largest).min())
        else:
            lifetime = min(lifetime, float(lifetime_bound(sizes[k], largest)))
        best = min(best, max(float(times_ms[k]), connecting_ms) * (lifetime + 0.5))
    return best


def large_objective_bound_ms(problem: Problem, clique_sizes: Sequence[int]) -> float:
    """The same for more islands than can be enumerated, from the sizes of cliques alone."""
    n = len(problem.islands)
    work = problem.payload_gb * MS_PER_GB_AT_1_GBPS
    entering = [
        sum(link.rate_gbps for link in problem.topology.links if link.target == island) for island in problem.islands
    ]
    busiest = work / max(entering)
    connecting = connecting_time_ms(problem)
    best = np.inf
    for largest in clique_sizes:
        time_ms = max(connecting, (largest - 1) * busiest)
        lifetime = float(lifetime_bound(np.full(n, float(largest)), largest))
        best = min(best, time_ms * (lifetime + 0.5))
    return best
