"""What a plan is: the answer of the scheduler, as plain values and as the JSON that scripts rely on.

Infinite values are math.inf here and null in JSON.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.topology import LinkId


@dataclass(frozen=True)
class Flow:
    """One island's stream in one round: when it starts, how long it lasts, and the tree that carries it.

    `links` are directed core links from the source outwards, each after the link that feeds it.
    """

    source: str
    receivers: tuple[str, ...]
    links: tuple[LinkId, ...]
    offset_ms: float
    duration_ms: float
    rate_gbps: float


@dataclass(frozen=True)
class RoundPlan:
    """One round. `peak_memory_gb` has every island; `binding` names what is used to the full.

    A round that cannot be has an infinite time and no flows.
    """

    cliques: tuple[tuple[str, ...], ...]
    round_time_ms: float
    flows: tuple[Flow, ...]
    peak_memory_gb: Mapping[str, float]
    binding: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A schedule with its times. `reason` says why a plan is infeasible, or why a value in it is infinite."""

    topology: str
    policy: str
    memory_gb: float
    payload_gb: float
    feasible: bool
    reason: str | None
    round_time_ms: float
    mean_divergence_lifetime_rounds: float
    survival: tuple[float, ...]
    objective_ms: float
    proven_optimal: bool
    lower_bound_ms: float | None
    rounds: tuple[RoundPlan, ...]


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON-ready values; infinite numbers become None."""
    return {
        "topology": plan.topology,
        "policy": plan.policy,
        "memory_gb": _finite(plan.memory_gb),
        "payload_gb": plan.payload_gb,
        "feasible": plan.feasible,
        "reason": plan.reason,
        "round_time_ms": _finite(plan.round_time_ms),
        "mean_divergence_lifetime_rounds": _finite(plan.mean_divergence_lifetime_rounds),
        "survival": list(plan.survival),
        "objective_ms": _finite(plan.objective_ms),
        "proven_optimal": plan.proven_optimal,
        "lower_bound_ms": _finite(plan.lower_bound_ms),
        "rounds": [_round_to_json(planned) for planned in plan.rounds],
    }


def _round_to_json(planned: RoundPlan) -> dict[str, Any]:
    return {
        "cliques": [list(clique) for clique in planned.cliques],
        "round_time_ms": _finite(planned.round_time_ms),
        "flows": [
            {
                "source": flow.source,
                "receivers": list(flow.receivers),
                "offset_ms": flow.offset_ms,
                "duration_ms": flow.duration_ms,
                "rate_gbps": flow.rate_gbps,
                "links": [list(link) for link in flow.links],
            }
            for flow in planned.flows
        ],
        "peak_memory_gb": dict(planned.peak_memory_gb),
        "binding": list(planned.binding),
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
