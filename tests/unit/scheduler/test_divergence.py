"""Survival and A against exact values."""

import math
from itertools import product

import pytest

from scheduler.divergence import divergence, grid_mean_lifetime_rounds
from scheduler.errors import PlanError
from scheduler.policies.pairs import circle_rounds

NINE = [str(k) for k in range(9)]
ROWS = [NINE[0:3], NINE[3:6], NINE[6:9]]
COLUMNS = [NINE[0::3], NINE[1::3], NINE[2::3]]


def lifetime(islands: list[str], rounds: list[list[list[str]]], measure: str = "total-variation") -> float:
    return divergence(islands, rounds, measure).mean_lifetime_rounds


def grid(side: int, axes: int) -> tuple[list[str], list[list[list[str]]]]:
    points = list(product(range(side), repeat=axes))
    name = {point: "-".join(map(str, point)) for point in points}
    rounds = []
    for axis in range(axes):
        lines: dict[tuple[int, ...], list[str]] = {}
        for point in points:
            lines.setdefault(point[:axis] + point[axis + 1 :], []).append(name[point])
        rounds.append(list(lines.values()))
    return list(name.values()), rounds


def test_all_to_all() -> None:
    spread = divergence(NINE, [[NINE]])
    assert spread.survival == (1.0, 0.0)
    assert spread.mean_lifetime_rounds == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize(("measure", "value"), [("total-variation", 7 / 4), ("l2", 3 / 2), ("frobenius", 5 / 4)])
def test_two_parallel_classes(measure: str, value: float) -> None:
    assert lifetime(NINE, [ROWS, COLUMNS], measure) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(("side", "axes", "value"), [(3, 3, 34 / 13), (2, 3, 17 / 7), (3, 2, 7 / 4), (4, 2, None)])
def test_grids(side: int, axes: int, value: float | None) -> None:
    analytic = grid_mean_lifetime_rounds(side, axes)
    assert value is None or analytic == pytest.approx(value, rel=1e-12)
    assert lifetime(*grid(side, axes)) == pytest.approx(analytic, rel=1e-12)


def test_a_schedule_that_never_mixes_lives_forever() -> None:
    spread = divergence(NINE, [ROWS])
    assert spread.mean_lifetime_rounds == math.inf
    assert spread.survival == pytest.approx((1.0, 0.75, 0.75))


def test_pairs_in_circle_order() -> None:
    rounds = [[list(pair) for pair in matching] for matching in circle_rounds(NINE)]
    assert lifetime(NINE, rounds) == pytest.approx(4.83, abs=0.005)
    assert lifetime(NINE, rounds, "coverage") == pytest.approx(119 / 36, rel=1e-12)


def test_odd_even_line() -> None:
    rounds = [[NINE[k : k + 2] for k in range(start, 8, 2)] for start in (0, 1)]
    assert lifetime(NINE, rounds, "coverage") == pytest.approx(23 / 6, rel=1e-12)


def test_idle_islands_and_unequal_cliques() -> None:
    # One pair of three islands, then another: worked out by hand for k = 1, as (1 + 0)/2 would be too simple.
    spread = divergence(["a", "b", "c"], [[["a", "b"]], [["b", "c"]]])
    # After one round: the pair's members have TV 1/3 of 2/3, the idle one 1.
    assert spread.survival[1] == pytest.approx((0.5 + 0.5 + 1) / 3, rel=1e-12)
    # After two (pair ab, then bc): born at a: (1/2, 1/4, 1/4); at b the same; at c: (0, 1/2, 1/2).
    assert spread.survival[2] == pytest.approx((0.25 + 0.25 + 0.5) / 3, rel=1e-12)


def test_slow_mixing_is_summed_to_its_end() -> None:
    # Two islands that meet once in 50 rounds (a third and fourth keep the other rounds busy).
    islands = ["a", "b"]
    rounds: list[list[list[str]]] = [[["a", "b"]]] + [[] for _ in range(49)]
    # Born in round b, the update waits for the next meeting: S = 1 for 1 … 50 rounds, on average 25.5.
    assert lifetime(islands, rounds) == pytest.approx(25.5, rel=1e-12)


def test_unknown_measure() -> None:
    with pytest.raises(PlanError, match="total-variation"):
        divergence(NINE, [[NINE]], "distance")
