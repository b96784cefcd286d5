"""`testbed plan`: the schedule only, without root."""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scheduler.divergence import MEASURES
from scheduler.errors import PolicyError
from scheduler.exchange import AGGREGATIONS, MULTICASTS
from scheduler.plan import Plan, RoundPlan, plan_to_json
from scheduler.planner import plan
from scheduler.policies.interface import Policy
from scheduler.policies.search import Search
from scheduler.problem import TREES
from scheduler.topology import Topology
from testbed.commands.arguments import HelpFormatter, number, whole_number
from testbed.policies import COMPARED, find_policy
from testbed.run.frames import frame_payload, packetisation_ms
from testbed.scale import Scale
from testbed.topology.load import load_topology


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "plan",
        help="work out schedules, without running them",
        description="Plan policies on a topology: who exchanges in which round, when each island starts and how fast, "
        "how long a round takes and how much aggregator memory it needs. Needs no root.",
        epilog="example: testbed plan --policy all --memory-gb 0,0.1,1,32 --plot plan.png",
        formatter_class=HelpFormatter,
    )
    option = parser.add_argument
    option("--topology", default="nine-city", metavar="NAME|FILE", help="built-in topology or a topology file")
    option(
        "--policy",
        default="all-to-all",
        metavar="NAME",
        help="a policy, `all` for the four named ones, `search` for the best schedule found, or path/file.py:Name",
    )
    option("--memory-gb", type=_memories, default="32", metavar="M[,M…]", help="memory of each aggregator")
    option("--payload-gb", type=number(above=0), default=1.692, help="what each island sends per round")
    option("--trees", choices=TREES, default="shortest", help="shortest-delay trees, or chosen for the shortest round")
    option("--multicast", choices=("auto", "pim", *MULTICASTS), default="auto", help="unicast: a copy per receiver")
    option("--aggregation", choices=AGGREGATIONS, default="edge", help="where streams are summed")
    option("--divergence", choices=tuple(MEASURES), default="total-variation", help="how divergence is measured")
    option("--equal-rates", action="store_true", help="give all senders of a round one rate")
    option("--back-to-back", action="store_true", help="objective of rounds without a fixed period, in seconds")
    option("--clique-sizes", type=_sizes, metavar="K[,K…]", help="search: only cliques of these sizes")
    option("--time-limit-s", type=number(above=0), default=45.0, help="search: stop after this time")
    option("--seed", type=whole_number(0), default=0, help="seed of everything random")
    option("--rate-scale", type=number(above=0), default=Scale().rate_scale, help="scale that packetisation_ms is for")
    option("--plot", type=Path, metavar="FILE", help="draw the plans to this file (png, pdf or svg)")
    option("--json", action="store_true", help="print one JSON document instead of tables")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    topology = load_topology(arguments.topology)
    plans = [
        planned
        for make in _policies(arguments)
        for planned in _over_memories(topology, make, arguments, may_not_apply=arguments.policy == "all")
    ]
    if arguments.plot is not None:
        from testbed.plots.plan import plot_plans  # noqa: PLC0415 - drawing is slow to load, and rarely asked for

        plot_plans(topology, plans, arguments.plot)
    scale = Scale(arguments.rate_scale)
    if arguments.json:
        documents = [_document(topology, planned, scale) for planned in plans]
        print(json.dumps(documents[0] if len(documents) == 1 else {"plans": documents}, indent=2))
    else:
        _print(topology, plans, scale)
    return 0


def _memories(text: str) -> list[float]:
    return [number(at_least=0)(part) for part in text.split(",")]


def _sizes(text: str) -> list[int]:
    return [whole_number(2)(part) for part in text.split(",")]


def _policies(arguments: argparse.Namespace) -> list[Callable[[], Policy]]:
    if arguments.policy == "search":
        return [lambda: Search(arguments.clique_sizes, arguments.time_limit_s, time.monotonic)]
    if arguments.clique_sizes is not None:
        raise PolicyError("--clique-sizes is for --policy search")
    names = COMPARED if arguments.policy == "all" else (arguments.policy,)
    return [lambda name=name: find_policy(name) for name in names]  # type: ignore[misc]


def _over_memories(
    topology: Topology, make: Callable[[], Policy], arguments: argparse.Namespace, *, may_not_apply: bool
) -> list[Plan]:
    plans: list[Plan] = []
    for memory_gb in arguments.memory_gb:
        policy = make()
        try:
            planned = plan(
                topology,
                policy,
                memory_gb=memory_gb,
                payload_gb=arguments.payload_gb,
                multicast="unicast" if arguments.multicast == "unicast" else "direct",
                aggregation=arguments.aggregation,
                trees=arguments.trees,
                equal_rates=arguments.equal_rates,
                measure=arguments.divergence,
                back_to_back=arguments.back_to_back,
                seed=arguments.seed,
            )
        except PolicyError as error:
            if not may_not_apply:
                raise
            planned = _inapplicable(topology, policy.name, memory_gb, arguments.payload_gb, str(error))
        plans.append(planned)
    return plans


def _inapplicable(topology: Topology, name: str, memory_gb: float, payload_gb: float, reason: str) -> Plan:
    return Plan(
        topology=topology.name,
        policy=name,
        memory_gb=memory_gb,
        payload_gb=payload_gb,
        feasible=False,
        reason=reason,
        round_time_ms=math.inf,
        mean_divergence_lifetime_rounds=math.inf,
        survival=(),
        objective_ms=math.inf,
        proven_optimal=False,
        lower_bound_ms=None,
        rounds=(),
    )


def _packetisation_ms(topology: Topology, planned: Plan, scale: Scale) -> float | None:
    """What packets add to the round that takes longest with it; None for a plan without times."""
    if not planned.feasible:
        return None
    frame = frame_payload(scale.size_bytes(planned.payload_gb)).full_frame_bytes
    added = [(cliques, packetisation_ms(cliques, topology, scale, frame)) for cliques in planned.rounds]
    return max(added, key=lambda pair: pair[0].round_time_ms + pair[1])[1]


def _document(topology: Topology, planned: Plan, scale: Scale) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in plan_to_json(planned).items():
        document[key] = value
        if key == "round_time_ms":
            document["packetisation_ms"] = _packetisation_ms(topology, planned, scale)
    return document


def _print(topology: Topology, plans: list[Plan], scale: Scale) -> None:
    console = Console(highlight=False)
    table = Table(title=f"{topology.name}: {plans[0].payload_gb:g} GB per island and round", title_justify="left")
    table.add_column("policy", no_wrap=True)
    for heading in ("memory\nGB", "T\nms", "packets\n+ ms", "A\nrounds", "objective\nms", "bound\nms"):
        table.add_column(heading, justify="right")
    for planned in plans:
        bound = _number(planned.lower_bound_ms, 0)
        table.add_row(
            planned.policy,
            f"{planned.memory_gb:g}",
            _number(planned.round_time_ms, 1),
            _number(_packetisation_ms(topology, planned, scale), 1),
            _number(planned.mean_divergence_lifetime_rounds, 3),
            _number(planned.objective_ms, 1),
            f"{bound} (proven)" if planned.proven_optimal else bound,
        )
    console.print(table)
    reasons: dict[tuple[str, str], list[str]] = {}
    for planned in plans:
        if planned.reason is not None:
            reasons.setdefault((planned.policy, planned.reason), []).append(f"{planned.memory_gb:g}")
    for (policy, reason), memories in reasons.items():
        console.print(f"{policy} at {', '.join(memories)} GB: {reason}", soft_wrap=True)
    if len(plans) == 1:
        for position, planned_round in enumerate(plans[0].rounds, start=1):
            console.print(_round_table(position, planned_round))
            if planned_round.binding:
                console.print(f"used to the full: {', '.join(planned_round.binding)}", soft_wrap=True)


def _round_table(position: int, planned_round: RoundPlan) -> Table:
    title = f"round {position}: {_number(planned_round.round_time_ms, 1)} ms"
    table = Table(title=title, title_justify="left")
    table.add_column("island", no_wrap=True)
    table.add_column("to")
    for heading in ("offset\nms", "duration\nms", "rate\nGbit/s", "peak memory\nGB"):
        table.add_column(heading, justify="right")
    for flow in planned_round.flows:
        table.add_row(
            flow.source,
            " ".join(flow.receivers),
            f"{flow.offset_ms:.1f}",
            f"{flow.duration_ms:.1f}",
            f"{flow.rate_gbps:.2f}",
            f"{planned_round.peak_memory_gb[flow.source]:.3f}",
        )
    return table


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"
