"""Round times against the exact test vectors: by the round LP, and in closed form where there is one."""

import math

import pytest

from scheduler import closed_form, round_lp, solution
from scheduler.errors import SolverError
from scheduler.exchange import Exchange
from scheduler.solution import Infeasible, RoundSolution, occupancy_gb
from tests.unit.scheduler.shapes import CHAIN, PAIR, TRIANGLE, exchange, topology, two_pairs


def solved(data: Exchange, *, equal_rates: bool = False) -> RoundSolution:
    """The LP's answer, checked, and compared with the closed form if the round has one."""
    answer = round_lp.solve(data, equal_rates=equal_rates)
    assert isinstance(answer, RoundSolution)
    solution.check(data, answer)
    if closed_form.applies(data) and not equal_rates:
        direct = closed_form.solve(data)
        assert isinstance(direct, RoundSolution)
        solution.check(data, direct)
        assert answer.time_ms == pytest.approx(direct.time_ms, rel=1e-6)
    return answer


@pytest.mark.parametrize("memory_gb", [0.0, 0.3, 1.25, 32.0, math.inf])
def test_pair_needs_no_memory(memory_gb: float) -> None:
    assert solved(exchange(PAIR, ["ab"], memory_gb)).time_ms == pytest.approx(150, rel=1e-6)


def test_pair_over_two_hops_is_as_fast_as_the_slower() -> None:
    where = topology(("a", "x", 10), ("x", "b", 20, 40), transits="x")
    assert solved(exchange(where, ["ab"], 0)).time_ms == pytest.approx(280, rel=1e-6)


def test_pairs_share_a_link() -> None:
    assert solved(exchange(two_pairs(30), ["ac", "bd"], 0)).time_ms == pytest.approx(230, rel=1e-6)


def test_pairs_share_a_link_with_equal_and_free_rates() -> None:
    data = exchange(two_pairs(40), ["ac", "bd"], 0)
    assert solved(data, equal_rates=True).time_ms == pytest.approx(240, rel=1e-6)
    assert solved(data).time_ms == pytest.approx(235.124922, rel=1e-6)


def test_triangle_without_memory_has_the_far_vertex_first() -> None:
    answer = solved(exchange(TRIANGLE, ["abc"], 0))
    assert answer.time_ms == pytest.approx(175, rel=1e-6)
    assert answer.offset_ms == pytest.approx({"a": 35, "b": 30, "c": 0}, abs=1e-4)


@pytest.mark.parametrize(("memory_gb", "time_ms"), [(0.125, 165), (0.25, 155), (0.375, 145), (32, 145)])
def test_triangle_gets_faster_with_memory(memory_gb: float, time_ms: float) -> None:
    assert solved(exchange(TRIANGLE, ["abc"], memory_gb)).time_ms == pytest.approx(time_ms, rel=1e-6)


def test_chain() -> None:
    assert solved(exchange(CHAIN, ["abc"], 0)).time_ms == pytest.approx(240, rel=1e-6)
    assert solved(exchange(CHAIN, ["abc"], 32)).time_ms == pytest.approx(225.124922, rel=1e-6)
    assert solved(exchange(CHAIN, ["abc"], 32), equal_rates=True).time_ms == pytest.approx(230, rel=1e-6)


@pytest.mark.parametrize(
    ("arrivals", "peak_gb"),
    [
        ({"a": (0, 100), "b": (20, 50)}, 0.3),
        ({"a": (0, 100), "b": (30, 100)}, 0.3),
        ({"a": (0, 50), "b": (80, 50)}, 1.0),
        ({"a": (0, 100)}, 0.0),
    ],
)
def test_occupancy(arrivals: dict[str, tuple[float, float]], peak_gb: float) -> None:
    assert occupancy_gb(arrivals, 1.0) == pytest.approx(peak_gb, rel=1e-12)


def test_four_islands_around_no_hub_need_memory_and_the_reason_names_the_cycle() -> None:
    ring = topology(("a", "b", 10), ("b", "c", 10), ("c", "d", 10), ("d", "a", 10))
    data = exchange(ring, ["abcd"], 0)
    for answer in (closed_form.solve(data), round_lp.solve(data)):
        assert isinstance(answer, Infeasible)
        assert "clique a b c d" in answer.reason
        assert "cycle" in answer.reason
        assert "10 ms apart" in answer.reason


def test_four_islands_around_one_hub_need_none() -> None:
    star = topology(("a", "x", 1), ("b", "x", 2), ("c", "x", 3), ("d", "x", 4), transits="x")
    answer = solved(exchange(star, ["abcd"], 0))
    # Three streams on each link out of the hub; P = 2·max w.
    assert answer.time_ms == pytest.approx(8 + 300, rel=1e-6)


def test_a_clique_of_any_size_is_feasible_with_a_little_memory() -> None:
    ring = topology(("a", "b", 10), ("b", "c", 10), ("c", "d", 10), ("d", "a", 10))
    answer = solved(exchange(ring, ["abcd"], 0.0125))
    # Skew 10 ms at 1 % of S: durations of at least 1000 ms.
    assert answer.time_ms > 1000


def test_access_links_hold_rates_down() -> None:
    data = exchange(PAIR, ["ab"], 0)
    slow = Exchange(
        data.cliques,
        data.delay_ms,
        data.shared,
        {"a": 400.0, "b": 100.0},
        data.memory_share,
        data.payload_gb,
        data.trees,
    )
    answer = solved(slow)
    assert answer.time_ms == pytest.approx(450, rel=1e-6)
    # The other stream takes the time that there is.
    assert answer.duration_ms["b"] == pytest.approx(400, rel=1e-6)


def test_check_names_what_does_not_hold() -> None:
    data = exchange(TRIANGLE, ["abc"], 0.125)
    good = round_lp.solve(data)
    assert isinstance(good, RoundSolution)
    with pytest.raises(SolverError, match="after T"):
        solution.check(data, RoundSolution(good.time_ms - 1, good.offset_ms, good.duration_ms))
    with pytest.raises(SolverError, match="memory at"):
        solution.check(data, RoundSolution(good.time_ms + 15, {**good.offset_ms, "a": 40.0}, good.duration_ms))
    fast = dict.fromkeys(good.duration_ms, 99.0)
    with pytest.raises(SolverError, match=r"access links|capacity"):
        solution.check(data, RoundSolution(good.time_ms, good.offset_ms, fast))
