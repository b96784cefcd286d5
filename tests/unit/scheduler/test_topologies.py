"""Plans on topologies with peculiarities; and what policies say where they do not apply."""

import math
from dataclasses import replace

import pytest

from scheduler.errors import PlanError, PolicyError, TopologyError
from scheduler.planner import plan, plan_schedule
from scheduler.policies.interface import Schedule
from scheduler.problem import Problem
from scheduler.regions import regions_of
from scheduler.topology import CoreLink, Island, Topology, both_ways
from testbed.topology.nine_city import nine_city
from tests.unit.scheduler.shapes import topology


def test_a_bridge_link_and_a_leaf_island() -> None:
    # Two triangles joined by one link of 40 Gbit/s, and a leaf behind one of them.
    where = topology(
        *(("a", "b", 5), ("b", "c", 6), ("a", "c", 7), ("d", "e", 5), ("e", "f", 6), ("d", "f", 7)),
        *(("c", "d", 30, 40), ("f", "g", 11)),
    )
    planned = plan(where, "all-to-all", memory_gb=2, payload_gb=1)
    # Four streams cross the bridge from d, e, f, g; one payload takes 200 ms there.
    assert planned.round_time_ms > 800
    assert "link d>c" in planned.rounds[0].binding
    assert planned.rounds[0].flows[6].source == "g"
    assert planned.rounds[0].flows[6].links[0] == ("g", "f")


def test_access_links_of_25_up_and_10_down() -> None:
    where = topology(("a", "b", 10), ("b", "c", 10), ("a", "c", 10))
    islands = tuple(replace(island, access_up_gbps=25.0, access_down_gbps=10.0) for island in where.islands)
    planned = plan(replace(where, islands=islands), "all-to-all", memory_gb=2, payload_gb=1)
    assert planned.round_time_ms == pytest.approx(10 + 800, rel=1e-6)
    assert "access of a" in planned.rounds[0].binding
    host = plan(replace(where, islands=islands), "all-to-all", memory_gb=2, payload_gb=1, aggregation="host")
    assert host.round_time_ms == pytest.approx(10 + 1600, rel=1e-6)
    assert "access down a" in host.rounds[0].binding


def test_one_slow_access_link() -> None:
    where = topology(("a", "b", 10))
    slow = replace(where, islands=(Island("a", access_up_gbps=25), Island("b", access_up_gbps=50, access_down_gbps=10)))
    planned = plan(slow, "all-to-all", memory_gb=0, payload_gb=1)
    assert [flow.rate_gbps for flow in planned.rounds[0].flows] == pytest.approx([10, 10])
    assert planned.rounds[0].flows[1].duration_ms == pytest.approx(800)  # slower than it must be, as there is time


def test_transit_routers_are_not_islands() -> None:
    where = topology(("a", "x", 10), ("x", "y", 10), ("y", "b", 10), ("x", "c", 5), transits="xy")
    planned = plan(where, "all-to-all", memory_gb=1, payload_gb=1)
    assert planned.rounds[0].cliques == (("a", "b", "c"),)
    assert set(planned.rounds[0].peak_memory_gb) == {"a", "b", "c"}


def test_an_isolated_island_is_an_error() -> None:
    with pytest.raises(TopologyError, match="'c' over the core links"):
        Topology("apart", (Island("a"), Island("b"), Island("c")), (), both_ways("a", "b", 1, 100))
    one_way = (*both_ways("a", "b", 1, 100), CoreLink("a", "c", 1, 100))
    with pytest.raises(TopologyError, match="'c' cannot reach"):
        Topology("apart", (Island("a"), Island("b"), Island("c")), (), one_way)


def test_more_than_32_links_at_one_router() -> None:
    names = [f"i{k}" for k in range(40)]
    links = tuple(link for k, name in enumerate(names) for link in both_ways("hub", name, 1.0 + k, 100))
    where = Topology("star", tuple(map(Island, names)), ("hub",), links)
    planned = plan(where, "all-to-all", memory_gb=0, payload_gb=0.125)
    # All routes go through one hub: no memory is needed. 39 streams of 10 ms come down each link.
    assert planned.feasible
    assert planned.round_time_ms == pytest.approx(2 * 40 + 390, rel=1e-6)
    assert planned.round_time_ms == pytest.approx(
        plan(where, "all-to-all", memory_gb=0, payload_gb=0.125, equal_rates=True).round_time_ms, rel=1e-6
    )


def test_regions_from_coordinates() -> None:
    where = nine_city()
    unnamed = replace(where, islands=tuple(replace(island, region=None) for island in where.islands))
    assert regions_of(unnamed) == regions_of(where)
    for policy in ("triangles", "regional"):
        assert plan(unnamed, policy, memory_gb=0, payload_gb=1) == plan(where, policy, memory_gb=0, payload_gb=1)


def test_policies_say_why_they_do_not_apply() -> None:
    bare = topology(("a", "b", 1), ("b", "c", 1))
    for policy in ("triangles", "regional"):
        with pytest.raises(PolicyError, match="coordinates"):
            plan(bare, policy, memory_gb=0, payload_gb=1)
    uneven = replace(bare, islands=(Island("a", "x"), Island("b", "x"), Island("c", "y")))
    with pytest.raises(PolicyError, match="regions have 2, 1"):
        plan(uneven, "triangles", memory_gb=0, payload_gb=1)
    alone = replace(bare, islands=(Island("a", "x"), Island("b", "y"), Island("c", "z")))
    with pytest.raises(PolicyError, match="no region has two"):
        plan(alone, "regional", memory_gb=0, payload_gb=1)


@pytest.mark.parametrize(
    ("rounds", "message"),
    [
        ((), "no rounds"),
        (((("a", "q"),),), "no island 'q'"),
        (((("a", "b"), ("b", "c")),), "'b' is in two cliques"),
        (((("a",),),), "no clique has two"),
    ],
)
def test_schedules_of_users_are_checked(rounds: tuple[tuple[tuple[str, ...], ...], ...], message: str) -> None:
    class Fixed:
        name = "fixed"

        def schedule(self, problem: Problem) -> Schedule:
            return Schedule(rounds)

    with pytest.raises(PolicyError, match=message):
        plan(topology(("a", "b", 1), ("b", "c", 1)), Fixed(), memory_gb=0, payload_gb=1)


def test_unknown_options_name_the_known_ones() -> None:
    for option in ({"trees": "tall"}, {"multicast": "broadcast"}, {"aggregation": "sky"}, {"measure": "inches"}):
        with pytest.raises(PlanError, match=r"one of|must be one of"):
            plan(nine_city(), "pairs", memory_gb=0, payload_gb=1, **option)  # type: ignore[arg-type]


def test_line_of_pairs() -> None:
    planned = plan(nine_city(), "pairs-line", memory_gb=0, payload_gb=1.692)
    assert len(planned.rounds) == 2
    assert planned.mean_divergence_lifetime_rounds == pytest.approx(9.6245, abs=1e-3)
    coverage = plan(nine_city(), "pairs-line", memory_gb=0, payload_gb=1.692, measure="coverage")
    assert coverage.mean_divergence_lifetime_rounds == pytest.approx(23 / 6, rel=1e-9)


def test_back_to_back_rounds() -> None:
    # Equal rounds: the same as with a fixed period.
    fixed = plan(nine_city(), "all-to-all", memory_gb=32, payload_gb=1.692)
    flowing = plan(nine_city(), "all-to-all", memory_gb=32, payload_gb=1.692, back_to_back=True)
    assert flowing.objective_ms == pytest.approx(fixed.objective_ms, rel=1e-9)
    # Two rounds of times p and q that mix after both, from either start: worked out by hand.
    two = plan(nine_city(), "triangles", memory_gb=0, payload_gb=1.692, back_to_back=True)
    p, q = (cliques.round_time_ms for cliques in two.rounds)
    born_in_p = p / 2 + q + 0.75 * p
    born_in_q = q / 2 + p + 0.75 * q
    assert two.objective_ms == pytest.approx((p * born_in_p + q * born_in_q) / (p + q), rel=1e-9)
    never = plan(nine_city(), "regional", memory_gb=0, payload_gb=1.692, back_to_back=True)
    assert math.isinf(never.objective_ms)


def test_planning_again_when_a_link_changes() -> None:
    where = nine_city()
    slower = where.with_links(
        [replace(link, rate_gbps=50.0) if link.id == ("sin", "fra") else link for link in where.links]
    )
    before = plan(where, "triangles", memory_gb=32, payload_gb=1.692)
    after = plan(slower, "triangles", memory_gb=32, payload_gb=1.692)
    assert after.round_time_ms > before.round_time_ms
    gone = where.with_links([link for link in where.links if set(link.id) != {"fra", "sin"}])
    assert plan(gone, "all-to-all", memory_gb=32, payload_gb=1.692).feasible


def test_a_given_schedule_can_be_planned() -> None:
    problem = Problem(nine_city(), memory_gb=0, payload_gb=1.692)
    planned = plan_schedule(problem, "mine", Schedule(((("nyc", "lon"),), (("lax", "tyo"), ("lon", "ams")))))
    assert planned.feasible
    assert math.isinf(planned.objective_ms)
    assert planned.reason is not None
