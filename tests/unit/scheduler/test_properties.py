"""Metamorphic properties, on random small topologies."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import closed_form, round_lp, solution
from scheduler.solution import Infeasible, RoundSolution
from scheduler.topology import CoreLink, Island, Topology
from tests.unit.scheduler.shapes import exchange

# Delays with no short sums in common: ties between routes depend on names, and are tested elsewhere.
DELAYS = st.lists(st.floats(1, 80, allow_nan=False), min_size=10, max_size=10, unique=True)
RATES = st.lists(st.sampled_from([10.0, 25.0, 40.0, 100.0]), min_size=10, max_size=10)
CLIQUES = st.sampled_from([["abc"], ["abcde"], ["abcd"], ["abc", "de"], ["ab", "cd"]])
ROUTINE = settings(max_examples=25, deadline=None)


def build(delays: list[float], rates: list[float], *, factor: float = 1.0, names: str = "abcde") -> Topology:
    """A ring of five islands with chords; links alike in both directions."""
    ends = [(k, (k + step) % 5) for step in (1, 2) for k in range(5)]
    links = []
    for (a, b), delay, rate in list(zip(ends, delays, rates, strict=True))[:8]:
        links.append(CoreLink(names[a], names[b], delay * factor, rate))
        links.append(CoreLink(names[b], names[a], delay * factor, rate))
    return Topology("random", tuple(Island(name) for name in names), (), tuple(links))


def time_ms(where: Topology, cliques: list[str], memory_gb: float, payload_gb: float = 1.0) -> float:
    answer = round_lp.solve(exchange(where, cliques, memory_gb, payload_gb=payload_gb))
    if isinstance(answer, Infeasible):
        return math.inf
    solution.check(exchange(where, cliques, memory_gb, payload_gb=payload_gb), answer)
    return answer.time_ms


@ROUTINE
@given(DELAYS, RATES, CLIQUES)
def test_time_never_rises_with_memory_nor_falls_with_payload(
    delays: list[float], rates: list[float], cliques: list[str]
) -> None:
    where = build(delays, rates)
    by_memory = [time_ms(where, cliques, memory) for memory in (0.02, 0.2, 0.6, 1.0, 5.0)]
    for less, more in pairwise(by_memory):
        assert more <= less * (1 + 1e-6)
    assert by_memory[3] == pytest.approx(by_memory[4], rel=1e-6)
    assert time_ms(where, cliques, 0.2, payload_gb=1.5) >= by_memory[1] * (1 - 1e-6)


@ROUTINE
@given(DELAYS, RATES, CLIQUES, st.sampled_from([0.0, 0.1, 2.0]))
def test_doubling_everything_doubles_the_time(
    delays: list[float], rates: list[float], cliques: list[str], memory_gb: float
) -> None:
    once = time_ms(build(delays, rates), cliques, memory_gb)
    twice = time_ms(build(delays, rates, factor=2.0), cliques, 2 * memory_gb, payload_gb=2.0)
    assert twice == pytest.approx(2 * once, rel=1e-6) or (math.isinf(once) and math.isinf(twice))


@ROUTINE
@given(DELAYS, RATES, CLIQUES, st.permutations("vwxyz"))
def test_relabelling_changes_nothing(
    delays: list[float], rates: list[float], cliques: list[str], names: list[str]
) -> None:
    renamed = str.maketrans("abcde", "".join(names))
    other = build(delays, rates, names="".join(names))
    assert time_ms(other, [clique.translate(renamed) for clique in cliques], 0.3) == pytest.approx(
        time_ms(build(delays, rates), cliques, 0.3), rel=1e-6
    )


@ROUTINE
@given(DELAYS, RATES, CLIQUES, st.sampled_from([0.0, 1.0, math.inf]))
def test_closed_forms_agree_with_the_program(
    delays: list[float], rates: list[float], cliques: list[str], memory_gb: float
) -> None:
    where = build(delays, rates)
    data = exchange(where, cliques, memory_gb, payload_gb=1.0)
    direct = closed_form.solve(data)
    by_program = time_ms(where, cliques, memory_gb)
    if isinstance(direct, RoundSolution):
        solution.check(data, direct)
        assert by_program == pytest.approx(direct.time_ms, rel=1e-6)
    else:
        assert math.isinf(by_program)


@ROUTINE
@given(DELAYS, DELAYS, RATES, CLIQUES, st.floats(0.05, 2))
def test_delays_by_direction_and_slow_access_links(
    forward: list[float], backward: list[float], rates: list[float], cliques: list[str], memory_gb: float
) -> None:
    where = build(forward, rates)
    links = tuple(
        replace(link, one_way_delay_ms=backward[k // 2]) if k % 2 else link for k, link in enumerate(where.links)
    )
    islands = tuple(replace(island, access_up_gbps=25.0, access_down_gbps=10.0) for island in where.islands)
    uneven = replace(where, links=links, islands=islands)
    data = exchange(uneven, cliques, memory_gb, payload_gb=1.0)
    answer = round_lp.solve(data)
    assert isinstance(answer, RoundSolution)
    solution.check(data, answer)
    # 1 GB into 10 Gbit/s.
    assert min(answer.duration_ms.values()) >= 800 * (1 - 1e-6)
