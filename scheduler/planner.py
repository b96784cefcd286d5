"""From a topology and the name of a policy to a plan."""

import math
from collections.abc import Sequence

from scheduler import solution
from scheduler.divergence import back_to_back_objective_ms, divergence
from scheduler.errors import PolicyError
from scheduler.exchange import Exchange
from scheduler.plan import Flow, Plan, RoundPlan
from scheduler.policies.interface import Policy, Round, Schedule
from scheduler.policies.named import NAMED
from scheduler.problem import Problem
from scheduler.solution import Infeasible, RoundSolution
from scheduler.topology import Topology

# 1 GB in 1 ms is 8000 Gbit/s.
_GBPS_PER_GB_PER_MS = 8000.0


def plan(
    topology: Topology,
    policy: str | Policy,
    *,
    memory_gb: float,
    payload_gb: float,
    multicast: str = "direct",
    aggregation: str = "edge",
    trees: str = "shortest",
    equal_rates: bool = False,
    measure: str = "total-variation",
    back_to_back: bool = False,
    seed: int = 0,
) -> Plan:
    """Plan one policy, given by name or as an object, at one payload and aggregator memory (GB, inf is allowed).

    `multicast` is `direct` or `unicast` (a copy per receiver), `aggregation` is `edge` or `host` (no sum at the
    edge), `trees` is `shortest` or `optimised`. `equal_rates` gives all senders of a round one duration. `measure` is
    the divergence measure; with `back_to_back` the objective is that of rounds which start as soon as the one before
    has ended, instead of on a fixed period.

    A policy whose rounds cannot be at this memory gives a plan that is infeasible and says why. Raises PolicyError for
    an unknown policy or one that does not apply, PlanError for impossible amounts or options.
    """
    chosen = policy_named(policy) if isinstance(policy, str) else policy
    problem = Problem(
        topology,
        memory_gb=memory_gb,
        payload_gb=payload_gb,
        multicast=multicast,
        aggregation=aggregation,
        trees=trees,
        equal_rates=equal_rates,
        measure=measure,
        seed=seed,
    )
    schedule = chosen.schedule(problem)
    check_schedule(chosen.name, schedule, topology)
    return plan_schedule(problem, chosen.name, schedule, back_to_back=back_to_back)


def policy_named(name: str) -> Policy:
    """The built-in policy of this name. Raises PolicyError naming the known ones."""
    if name not in NAMED:
        raise PolicyError(f"unknown policy {name!r}: one of {', '.join(NAMED)}")
    return NAMED[name]()


def plan_schedule(problem: Problem, name: str, schedule: Schedule, *, back_to_back: bool = False) -> Plan:
    """Plan a schedule that is already decided: trees, offsets, durations, memory, divergence, objective."""
    rounds: list[RoundPlan] = []
    reasons: list[str] = []
    for number, cliques in enumerate(schedule.rounds, start=1):
        data, answer = problem.solve(cliques, problem.memory_gb)
        if isinstance(answer, Infeasible):
            reasons.append(f"round {number}: {answer.reason}")
            rounds.append(RoundPlan(cliques, math.inf, (), {}, ()))
        else:
            solution.check(data, answer)
            rounds.append(_round_plan(problem.islands, cliques, data, answer))
    spread = divergence(problem.islands, schedule.rounds, problem.measure)
    time_ms = max(planned.round_time_ms for planned in rounds)
    if not reasons and math.isinf(spread.mean_lifetime_rounds):
        reasons.append("this schedule never mixes all islands: the divergence lifetime is infinite")
    objective_ms = time_ms * (spread.mean_lifetime_rounds + 0.5)
    if back_to_back and math.isfinite(objective_ms):
        times = [planned.round_time_ms for planned in rounds]
        objective_ms = back_to_back_objective_ms(problem.islands, schedule.rounds, times, problem.measure)
    return Plan(
        topology=problem.topology.name,
        policy=name,
        memory_gb=problem.memory_gb,
        payload_gb=problem.payload_gb,
        feasible=math.isfinite(time_ms),
        reason=reasons[0] if reasons else None,
        round_time_ms=time_ms,
        mean_divergence_lifetime_rounds=spread.mean_lifetime_rounds,
        survival=spread.survival,
        objective_ms=objective_ms,
        proven_optimal=schedule.proven_optimal,
        lower_bound_ms=schedule.lower_bound_ms,
        rounds=tuple(rounds),
    )


def _round_plan(islands: Sequence[str], cliques: Round, data: Exchange, answer: RoundSolution) -> RoundPlan:
    flows = tuple(
        Flow(
            source=sender,
            receivers=data.trees[sender].receivers,
            links=data.trees[sender].links,
            offset_ms=answer.offset_ms[sender],
            duration_ms=answer.duration_ms[sender],
            rate_gbps=data.payload_gb * _GBPS_PER_GB_PER_MS / answer.duration_ms[sender],
        )
        for sender in data.senders
    )
    peaks = solution.peak_memory_gb(data, answer)
    return RoundPlan(
        cliques=cliques,
        round_time_ms=answer.time_ms,
        flows=flows,
        peak_memory_gb={island: peaks.get(island, 0.0) for island in islands},
        binding=solution.binding(data, answer),
    )


def check_schedule(name: str, schedule: Schedule, topology: Topology) -> None:
    """Raise PolicyError unless the rounds are disjoint cliques of known islands and at least one island sends."""
    if not schedule.rounds:
        raise PolicyError(f"policy {name} returned no rounds")
    known = set(topology.island_ids)
    for number, cliques in enumerate(schedule.rounds, start=1):
        members = [island for clique in cliques for island in clique]
        unknown = next((island for island in members if island not in known), None)
        if unknown is not None:
            raise PolicyError(f"policy {name}, round {number}: there is no island {unknown!r}")
        if len(set(members)) < len(members):
            twice = next(island for island in members if members.count(island) > 1)
            raise PolicyError(f"policy {name}, round {number}: island {twice!r} is in two cliques")
        if not any(len(clique) > 1 for clique in cliques):
            raise PolicyError(f"policy {name}, round {number}: no clique has two islands")
