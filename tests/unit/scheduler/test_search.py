"""The search: against brute force on small topologies, on triples of nine cities, with designs beyond nine islands."""

import random
from itertools import combinations, combinations_with_replacement

import pytest

from scheduler.divergence import divergence
from scheduler.errors import PolicyError
from scheduler.plan import Plan
from scheduler.planner import plan
from scheduler.policies.search import Search
from scheduler.problem import Problem
from scheduler.search.bounds import tree_free_times_ms
from scheduler.search.designs import affine, grid, kirkman, one_factorisation
from scheduler.search.partitions import partitions
from scheduler.topology import Island, Topology, both_ways
from testbed.topology.nine_city import nine_city
from tests.unit.scheduler.shapes import PAIR, topology

PAYLOAD_GB = 1.692
FIVE = topology(("a", "b", 10), ("b", "c", 27), ("c", "d", 12), ("d", "e", 45), ("e", "a", 33), ("a", "c", 31))


def search(where: Topology, memory_gb: float, *, sizes: list[int] | None = None, trees: str = "shortest") -> Plan:
    return plan(where, Search(sizes), memory_gb=memory_gb, payload_gb=PAYLOAD_GB, trees=trees)


def test_a_pair_is_proven_optimal() -> None:
    planned = plan(PAIR, Search(), memory_gb=0, payload_gb=1.25)
    assert planned.objective_ms == pytest.approx(225, rel=1e-6)
    assert planned.lower_bound_ms == pytest.approx(225, rel=1e-6)
    assert planned.proven_optimal


@pytest.mark.parametrize("memory_gb", [0.0, 0.2, 5.0])
def test_nothing_of_one_or_two_rounds_is_better(memory_gb: float) -> None:
    problem = Problem(FIVE, memory_gb=memory_gb, payload_gb=PAYLOAD_GB)
    rounds = list(partitions(FIVE.island_ids))
    assert len(rounds) == 51  # Bell(5) less the one without a clique
    best = min(
        max(map(problem.round_time_ms, pair)) * (divergence(FIVE.island_ids, pair).mean_lifetime_rounds + 0.5)
        for pair in combinations_with_replacement(rounds, 2)
    )
    planned = search(FIVE, memory_gb)
    assert planned.objective_ms <= best * (1 + 1e-6)
    assert planned.lower_bound_ms is not None
    assert planned.lower_bound_ms <= planned.objective_ms


@pytest.mark.parametrize(("memory_gb", "objective_ms"), [(0.0, 1041.5), (32.0, 864.5)])
def test_triples_of_nine_cities(memory_gb: float, objective_ms: float) -> None:
    planned = search(nine_city(), memory_gb, sizes=[3])
    assert planned.objective_ms <= objective_ms
    assert all(len(clique) == 3 for cliques in planned.rounds for clique in cliques.cliques)


def test_one_seed_one_schedule() -> None:
    assert search(FIVE, 0.2) == search(FIVE, 0.2)
    ring = large(15)
    assert search(ring, 0.0, sizes=[3]) == search(ring, 0.0, sizes=[3])


def test_optimised_trees_are_never_longer_and_bounds_hold() -> None:
    plain = Problem(nine_city(), memory_gb=0, payload_gb=PAYLOAD_GB)
    packed = plain.with_trees("optimised")
    rounds = random.Random(3).sample(list(partitions(nine_city().island_ids, {2, 3})), 12)
    for cliques, bound in zip(rounds, tree_free_times_ms(plain, rounds), strict=True):
        assert bound <= packed.round_time_ms(cliques) * (1 + 1e-9)
        assert packed.round_time_ms(cliques) <= plain.round_time_ms(cliques) * (1 + 1e-9)


def test_a_time_limit_that_has_passed_still_gives_an_answer_or_says_so() -> None:
    ticks = iter(range(10**6))
    with pytest.raises(PolicyError, match="more time"):
        plan(FIVE, Search(None, 1.0, lambda: float(next(ticks))), memory_gb=1, payload_gb=PAYLOAD_GB)


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(PolicyError, match="no clique of 7"):
        search(FIVE, 1, sizes=[7])
    with pytest.raises(PolicyError, match="at least 2"):
        Search([1])


@pytest.mark.parametrize("design", [affine(3, 3), affine(5, 2), one_factorisation(10), grid([3, 4]), grid([2, 2, 3])])
def test_designs_bring_no_pair_together_twice(design: tuple[tuple[tuple[int, ...], ...], ...]) -> None:
    labels = sorted(label for clique in design[0] for label in clique)
    met = [frozenset(pair) for cliques in design for clique in cliques for pair in combinations(clique, 2)]
    assert labels == list(range(len(labels)))
    assert len(met) == len(set(met))


@pytest.mark.parametrize("n", [9, 15, 21, 27, 39, 63, 81])
def test_kirkman_triples_bring_every_pair_together_once(n: int) -> None:
    design = kirkman(n)
    assert design is not None
    assert len(design) == (n - 1) // 2
    for cliques in design:
        assert sorted(label for clique in cliques for label in clique) == list(range(n))
    met = {frozenset(pair) for cliques in design for clique in cliques for pair in combinations(clique, 2)}
    assert len(met) == n * (n - 1) // 2


def large(n: int) -> Topology:
    """Regions of three on a ring with chords."""
    generator = random.Random(n)
    ends = [(3 * r + a, 3 * r + b) for r in range(n // 3) for a, b in ((0, 1), (1, 2), (0, 2))]
    ends += [(3 * r + step % 3, (3 * (r + step) + (step + 1) % 3) % n) for r in range(n // 3) for step in (1, 2, 5)]
    names = [f"i{k}" for k in range(n)]
    links = {frozenset(pair): pair for pair in ends}
    both = [
        link
        for a, b in links.values()
        for link in both_ways(names[a], names[b], round(generator.uniform(2, 60), 2), 100.0)
    ]
    islands = tuple(Island(name, f"region{k // 3}") for k, name in enumerate(names))
    return Topology(f"ring-{n}", islands, (), tuple(both))


@pytest.mark.parametrize("memory_gb", [0.0, 0.1])
def test_twenty_seven_islands(memory_gb: float) -> None:
    where = large(27)
    planned = search(where, memory_gb, sizes=[3])
    assert planned.feasible
    # No worse than the design it starts from, 34/13 rounds.
    triangles = plan(where, "triangles", memory_gb=memory_gb, payload_gb=PAYLOAD_GB)
    assert triangles.mean_divergence_lifetime_rounds == pytest.approx(34 / 13, rel=1e-9)
    assert planned.objective_ms <= triangles.objective_ms
    assert planned.lower_bound_ms is not None
    assert planned.lower_bound_ms <= planned.objective_ms
