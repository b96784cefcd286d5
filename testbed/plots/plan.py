"""Pictures of plans: a Gantt chart of the best one, objectives against memory, and survival curves."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from scheduler.plan import Plan, RoundPlan
from scheduler.topology import Topology
from scheduler.trees import Tree
from testbed.errors import TestbedError

_COLOURS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#bbbbbb",
    "#222222",
    "#ee7733",
    "#009988",
)
_ROUNDS_DRAWN = 4
_ISLANDS_DRAWN = 27


def plot_plans(topology: Topology, plans: Sequence[Plan], path: Path) -> None:
    """Draw plans of one topology to a file; its ending gives the format. Raises TestbedError if that cannot be."""
    feasible = [planned for planned in plans if planned.feasible]
    if not feasible:
        raise TestbedError("--plot: no plan is feasible, so there is nothing to draw")
    drawn = min(feasible, key=lambda planned: planned.objective_ms)
    rounds = drawn.rounds[:_ROUNDS_DRAWN]
    islands = topology.island_ids[:_ISLANDS_DRAWN]
    height = max(3.0, 0.6 * len(islands))
    figure = Figure(figsize=(max(11.0, 5.5 * len(rounds)), height + 4.2), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[height, 4.2])
    above, below = parts
    above.suptitle(f"{drawn.policy} on {topology.name}, {drawn.memory_gb:g} GB: what each island sends and receives")
    axes = above.subplots(1, len(rounds), sharey=True, squeeze=False)[0]
    for position, (axis, planned) in enumerate(zip(axes, rounds, strict=True), start=1):
        _gantt(axis, topology, planned, islands, f"round {position}: {planned.round_time_ms:.1f} ms")
    if len(drawn.rounds) > len(rounds):
        axes[-1].set_xlabel(f"ms (first {len(rounds)} of {len(drawn.rounds)} rounds)")
    objectives, survival = below.subplots(1, 2)
    _objectives(objectives, feasible)
    _survival(survival, plans)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise TestbedError(f"--plot {path}: cannot be written: {error}") from None


def _gantt(axis: Any, topology: Topology, planned: RoundPlan, islands: Sequence[str], title: str) -> None:
    """Above each island's line the bar of its own sending, below it a thin bar per incoming stream."""
    colour = {island: _COLOURS[k % len(_COLOURS)] for k, island in enumerate(topology.island_ids)}
    row = {island: k for k, island in enumerate(islands)}
    coming: dict[str, list[tuple[float, float, str]]] = {island: [] for island in islands}
    for flow in planned.flows:
        if flow.source in row:
            axis.barh(row[flow.source] - 0.2, flow.duration_ms, 0.34, flow.offset_ms, color=colour[flow.source])
        delays = Tree(flow.source, flow.receivers, flow.links).delays_ms(topology)
        for receiver, delay in delays.items():
            if receiver in row:
                coming[receiver].append((flow.offset_ms + delay, flow.duration_ms, flow.source))
    for island, streams in coming.items():
        thickness = 0.4 / max(len(streams), 1)
        for k, (start, duration, source) in enumerate(sorted(streams)):
            middle = row[island] + 0.03 + thickness * (k + 0.5)
            axis.barh(middle, duration, thickness * 0.8, start, color=colour[source], alpha=0.6)
    axis.axvline(planned.round_time_ms, color="black", linewidth=0.8, linestyle="--")
    axis.set_yticks(range(len(islands)), islands)
    axis.set_ylim(len(islands) - 0.4, -0.6)
    axis.set_xlim(0, planned.round_time_ms * 1.02)
    axis.set_title(title, fontsize="medium")
    axis.set_xlabel("ms; thick: sends, thin: receives, in the sender's colour")


def _objectives(axis: Any, feasible: Sequence[Plan]) -> None:
    """Objective against memory, one line per policy; memory on an axis that is linear near 0 and logarithmic beyond."""
    names = list(dict.fromkeys(planned.policy for planned in feasible))
    drawn = False
    for name in names:
        points = sorted(
            (planned.memory_gb, planned.objective_ms)
            for planned in feasible
            if planned.policy == name and math.isfinite(planned.objective_ms)
        )
        if points:
            memories, objectives = zip(*points, strict=True)
            axis.plot(memories, objectives, marker="o", label=name)
            drawn = True
    axis.set_xscale("symlog", linthresh=0.1)
    memories_gb = sorted({planned.memory_gb for planned in feasible})
    axis.set_xticks(memories_gb, [f"{memory_gb:g}" for memory_gb in memories_gb])
    axis.minorticks_off()
    axis.set_xlabel("aggregator memory, GB")
    axis.set_ylabel("objective T·(A + 1/2), ms")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    if drawn:
        axis.legend()


def _survival(axis: Any, plans: Sequence[Plan]) -> None:
    """Survival curves, one per schedule: memory can change a policy's rounds, so equal curves are drawn once."""
    seen: set[tuple[str, tuple[float, ...]]] = set()
    for planned in plans:
        key = (planned.policy, planned.survival)
        if not planned.survival or key in seen:
            continue
        seen.add(key)
        lifetime = planned.mean_divergence_lifetime_rounds
        text = f"A = {lifetime:.2f}" if math.isfinite(lifetime) else "never mixes"
        curve = planned.survival[:25]
        axis.plot(range(len(curve)), curve, marker=".", label=f"{planned.policy} ({text})")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("rounds since an update was born")
    axis.set_ylabel("survival S(k)")
    axis.set_ylim(0, 1.05)
    axis.grid(alpha=0.3)
    axis.legend()
