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


def plan_from_json(document: Mapping[str, Any]) -> Plan:
    """The inverse of `plan_to_json`. Raises KeyError for a document that lacks something."""
    return Plan(
        topology=document["topology"],
        policy=document["policy"],
        memory_gb=_or_infinite(document["memory_gb"]),
        payload_gb=document["payload_gb"],
        feasible=document["feasible"],
        reason=document["reason"],
        round_time_ms=_or_infinite(document["round_time_ms"]),
        mean_divergence_lifetime_rounds=_or_infinite(document["mean_divergence_lifetime_rounds"]),
        survival=tuple(document["survival"]),
        objective_ms=_or_infinite(document["objective_ms"]),
        proven_optimal=document["proven_optimal"],
        lower_bound_ms=document["lower_bound_ms"],
        rounds=tuple(_round_from_json(planned) for planned in document["rounds"]),
    )


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


def _round_from_json(document: Mapping[str, Any]) -> RoundPlan:
    return RoundPlan(
        cliques=tuple(tuple(clique) for clique in document["cliques"]),
        round_time_ms=_or_infinite(document["round_time_ms"]),
        flows=tuple(
            Flow(
                source=flow["source"],
                receivers=tuple(flow["receivers"]),
                links=tuple((parent, child) for parent, child in flow["links"]),
                offset_ms=flow["offset_ms"],
                duration_ms=flow["duration_ms"],
                rate_gbps=flow["rate_gbps"],
            )
            for flow in document["flows"]
        ),
        peak_memory_gb=dict(document["peak_memory_gb"]),
        binding=tuple(document["binding"]),
    )


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
