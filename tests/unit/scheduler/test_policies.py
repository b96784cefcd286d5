"""The named policies on the built-in topology, against the reference table."""

import json
import math
import time

import pytest

from scheduler.errors import PlanError, PolicyError
from scheduler.plan import plan_to_json
from scheduler.planner import plan
from scheduler.policies.pairs import circle_rounds
from testbed.topology.nine_city import nine_city

PAYLOAD_GB = 1.692
NINE_CITY = nine_city()
TABLE = [
    ("all-to-all", 0.1, 2039.1, 1.0),
    ("all-to-all", 1.0, 675.7, 1.0),
    ("all-to-all", 32.0, 675.7, 1.0),
    ("triangles", 0.0, 565.1, 1.75),
    ("triangles", 0.1, 546.7, 1.75),
    ("triangles", 1.0, 532.0, 1.75),
    ("triangles", 32.0, 532.0, 1.75),
    ("pairs", 0.0, 375.0, 4.83),
    ("pairs", 0.1, 375.0, 4.83),
    ("pairs", 1.0, 375.0, 4.83),
    ("pairs", 32.0, 375.0, 4.83),
    ("regional", 0.0, 190.4, math.inf),
    ("regional", 0.1, 182.4, math.inf),
    ("regional", 1.0, 175.4, math.inf),
    ("regional", 32.0, 175.4, math.inf),
]


@pytest.mark.parametrize(("policy", "memory_gb", "time_ms", "lifetime"), TABLE)
def test_reference_table(policy: str, memory_gb: float, time_ms: float, lifetime: float) -> None:
    planned = plan(NINE_CITY, policy, memory_gb=memory_gb, payload_gb=PAYLOAD_GB)
    assert planned.feasible
    assert planned.round_time_ms == pytest.approx(time_ms, abs=0.5)
    assert planned.mean_divergence_lifetime_rounds == pytest.approx(lifetime, abs=0.005)
    assert planned.objective_ms == pytest.approx(planned.round_time_ms * (lifetime + 0.5), rel=0.001)
    if math.isinf(lifetime):
        assert planned.reason is not None


def test_all_to_all_without_memory_is_infeasible_and_says_why() -> None:
    planned = plan(NINE_CITY, "all-to-all", memory_gb=0, payload_gb=PAYLOAD_GB)
    assert not planned.feasible
    assert planned.reason is not None
    assert "clique nyc chi lax lon fra ams tyo hkg sin" in planned.reason
    written = plan_to_json(planned)
    assert written["round_time_ms"] is None
    assert written["objective_ms"] is None
    assert written["rounds"][0]["flows"] == []


def test_plans_are_quick_and_repeatable() -> None:
    started = time.monotonic()
    first = plan(NINE_CITY, "pairs", memory_gb=0, payload_gb=PAYLOAD_GB)
    assert time.monotonic() - started < 10
    assert plan(NINE_CITY, "pairs", memory_gb=0, payload_gb=PAYLOAD_GB) == first


def test_a_plan_as_json_has_every_key_and_survives_a_round_trip() -> None:
    planned = plan(NINE_CITY, "triangles", memory_gb=0.1, payload_gb=PAYLOAD_GB)
    written = json.loads(json.dumps(plan_to_json(planned), allow_nan=False))
    assert set(written) == {
        *("topology", "policy", "memory_gb", "payload_gb", "feasible", "reason", "round_time_ms", "survival"),
        *("mean_divergence_lifetime_rounds", "objective_ms", "proven_optimal", "lower_bound_ms", "rounds"),
    }
    assert set(written["rounds"][0]) == {"cliques", "round_time_ms", "flows", "peak_memory_gb", "binding"}
    flow = written["rounds"][1]["flows"][0]
    assert set(flow) == {"source", "receivers", "offset_ms", "duration_ms", "rate_gbps", "links"}
    assert flow["links"][0][0] == flow["source"]
    assert flow["rate_gbps"] * flow["duration_ms"] == pytest.approx(PAYLOAD_GB * 8000)
    assert max(written["rounds"][1]["peak_memory_gb"].values()) == pytest.approx(0.1, rel=1e-6)
    assert "link fra>sin" in written["rounds"][1]["binding"]


def test_each_pair_meets_once_whether_one_is_idle_or_not() -> None:
    for n in range(2, 12):
        seats = [str(k) for k in range(n)]
        rounds = circle_rounds(seats)
        met = [frozenset(pair) for matching in rounds for pair in matching]
        assert len(met) == len(set(met)) == n * (n - 1) // 2
        for matching in rounds:
            busy = [island for pair in matching for island in pair]
            assert len(busy) == len(set(busy)) == n - n % 2


def test_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(PolicyError, match="all-to-all, triangles, pairs, regional"):
        plan(NINE_CITY, "squares", memory_gb=0, payload_gb=1)


@pytest.mark.parametrize(
    ("memory_gb", "payload_gb"), [(-1, 1), (math.nan, 1), (0, 0), (0, -1), (0, math.nan), (0, math.inf)]
)
def test_impossible_amounts_are_refused(memory_gb: float, payload_gb: float) -> None:
    with pytest.raises(PlanError, match=r"memory_gb|payload_gb"):
        plan(NINE_CITY, "all-to-all", memory_gb=memory_gb, payload_gb=payload_gb)
