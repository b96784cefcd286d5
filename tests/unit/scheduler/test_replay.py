"""Plans replayed position by position: T, memory and capacity hold for every policy, memory and ablation."""

import pytest

from scheduler.plan import Flow, Plan
from scheduler.planner import plan
from scheduler.replay import replay
from scheduler.topology import Topology
from testbed.topology.nine_city import nine_city
from tests.unit.scheduler.shapes import topology

PAYLOAD_GB = 1.692
POSITIONS = 2048
# The replay counts positions, at either end of a stream.
RESOLUTION_GB = 2 * PAYLOAD_GB / POSITIONS


def confirm(where: Topology, planned: Plan, *, unicast: bool = False, memory_counts: bool = True) -> None:
    for cliques in planned.rounds:
        seen = replay(where, cliques.flows, payload_gb=planned.payload_gb, unicast=unicast, positions=POSITIONS)
        assert seen.last_byte_ms == pytest.approx(cliques.round_time_ms, rel=1e-6)
        for link in seen.link_rate_gbps:
            assert seen.peak_rate_gbps(link) <= where.link(*link).rate_gbps * (1 + 2e-7)
        for island in seen.occupancy_gb:
            if memory_counts:
                assert seen.peak_memory_gb(island) <= planned.memory_gb + RESOLUTION_GB
            assert seen.peak_memory_gb(island) == pytest.approx(cliques.peak_memory_gb[island], abs=RESOLUTION_GB)


@pytest.mark.parametrize("trees", ["shortest", "optimised"])
@pytest.mark.parametrize(
    ("policy", "memory_gb"),
    [(p, m) for p in ("all-to-all", "triangles", "regional") for m in (0.0, 0.1, 32.0)] + [("pairs", 0.0)],
)
def test_named_policies(policy: str, memory_gb: float, trees: str) -> None:
    where = nine_city()
    planned = plan(where, policy, memory_gb=memory_gb, payload_gb=PAYLOAD_GB, trees=trees)
    if policy == "all-to-all" and memory_gb == 0:
        assert not planned.feasible
        return
    confirm(where, planned)
    plain = plan(where, policy, memory_gb=memory_gb, payload_gb=PAYLOAD_GB)
    assert planned.round_time_ms <= plain.round_time_ms * (1 + 1e-6)


@pytest.mark.parametrize("policy", ["all-to-all", "triangles", "pairs", "regional"])
def test_unicast_copies_load_links(policy: str) -> None:
    where = nine_city()
    planned = plan(where, policy, memory_gb=32, payload_gb=PAYLOAD_GB, multicast="unicast")
    confirm(where, planned, unicast=True)
    multicast = plan(where, policy, memory_gb=32, payload_gb=PAYLOAD_GB)
    assert planned.round_time_ms >= multicast.round_time_ms * (1 - 1e-6)
    if policy == "pairs":
        assert planned.round_time_ms == pytest.approx(multicast.round_time_ms, rel=1e-6)
    if policy == "all-to-all":
        assert planned.round_time_ms > 2 * multicast.round_time_ms


@pytest.mark.parametrize("policy", ["all-to-all", "triangles", "pairs", "regional"])
def test_host_aggregation_shares_the_access_link_and_needs_no_edge_memory(policy: str) -> None:
    where = nine_city()
    planned = plan(where, policy, memory_gb=0, payload_gb=PAYLOAD_GB, aggregation="host")
    assert planned.feasible
    confirm(where, planned, memory_counts=False)
    for cliques in planned.rounds:
        for island in where.islands:
            coming = sum(flow.rate_gbps for flow in cliques.flows if island.id in flow.receivers)
            assert coming <= island.access_down_gbps * (1 + 1e-6)


def test_memory_is_needed_where_streams_are_apart() -> None:
    where = topology(("a", "c", 10), ("b", "c", 40))
    flows = [
        Flow("a", ("c",), (("a", "c"),), 0.0, 100.0, 100.0),
        Flow("b", ("c",), (("b", "c"),), 0.0, 100.0, 100.0),
    ]
    seen = replay(where, flows, payload_gb=1.25, positions=1001)
    # b comes 30 ms after a: 30 % of the payload waits.
    assert seen.peak_memory_gb("c") == pytest.approx(0.375, abs=0.003)
    assert seen.last_byte_by_island_ms == {"c": 140.0}
    assert seen.peak_rate_gbps(("a", "c")) == pytest.approx(100)
    aligned = [Flow("a", ("c",), (("a", "c"),), 30.0, 100.0, 100.0), flows[1]]
    assert replay(where, aligned, payload_gb=1.25).peak_memory_gb("c") == 0.0
