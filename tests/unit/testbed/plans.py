"""Small plans for tests."""

from collections.abc import Sequence

from scheduler.plan import Flow, Plan, RoundPlan


def make_plan(rounds: Sequence[Sequence[Flow]], round_time_ms: float = 100.0) -> Plan:
    """A plan of the given flows; each flow's source and receivers are a clique."""
    planned = tuple(
        RoundPlan(
            cliques=tuple(sorted({tuple(sorted((flow.source, *flow.receivers))) for flow in flows})),
            round_time_ms=round_time_ms,
            flows=tuple(flows),
            peak_memory_gb={},
            binding=(),
        )
        for flows in rounds
    )
    return Plan(
        topology="test",
        policy="test",
        memory_gb=1.0,
        payload_gb=1.0,
        feasible=True,
        reason=None,
        round_time_ms=round_time_ms,
        mean_divergence_lifetime_rounds=1.0,
        survival=(1.0, 0.0),
        objective_ms=1.5 * round_time_ms,
        proven_optimal=True,
        lower_bound_ms=None,
        rounds=planned,
    )
