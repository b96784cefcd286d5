"""Loss curves: the same training under every schedule and baseline, against rounds, seconds and bytes.

The training is done in one plain process each, which gives the same numbers as a run, bit for bit; the seconds and
bytes of a round are what the runs of the comparison measured. The testbed's own pauses between rounds are left out:
they are no part of what is compared.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from scheduler.topology import Topology
from testbed.baselines.plain import PlainTraining, train_plain
from testbed.paper.experiments import RING, Outcome, schedule_key
from testbed.run.frames import Framing
from testbed.run.settings import REFERENCE_PAYLOAD_GB

WORKLOADS = ("digits", "characters")
TRAINED_S = 20.0  # of emulated time
_POINTS = 10  # of a curve, beside its first
_AT_ONCE = 2
SCHEDULES = (("all-to-all", 32.0), ("triangles", 0.0), ("pairs", 0.0), ("regional", 0.0))


@dataclass(frozen=True)
class Method:
    """A way to train. A round takes `round_s` and puts `round_gb` on all core links together."""

    name: str
    schedule: Sequence[Sequence[Sequence[int]]]
    round_s: float
    round_gb: float
    steps: Sequence[int]
    overlap: bool


@dataclass(frozen=True)
class Curve:
    """`points[]` {rounds, steps, seconds, gb, loss (mean of islands), worst_loss, …}."""

    workload: str
    method: str
    points: Sequence[Mapping[str, float]]


def methods(topology: Topology, outcomes: Mapping[str, Outcome], step_ms: float) -> list[Method]:
    """Every schedule and baseline whose run there is."""
    found = []
    everyone = [[list(range(len(topology.islands)))]]
    step_s = step_ms / 1e3
    for policy, memory_gb in SCHEDULES:
        summary = outcomes[schedule_key(policy, memory_gb)].summary
        if summary is None:
            continue
        round_s = summary["measured"]["round_time_ms"]["median"] / 1e3
        count = int(TRAINED_S / round_s)
        done = [int(number * round_s / step_s) for number in range(count + 1)]
        steps = [later - earlier for earlier, later in pairwise(done)]
        cliques = [
            [[topology.island_ids.index(member) for member in clique] for clique in planned]
            for planned in summary["cliques"]
        ]
        round_gb = summary["multicast"]["core_bytes"] / summary["rounds"] * _full_size(summary)
        found.append(Method(f"{policy}, overlapped", cliques, round_s, round_gb, steps, True))
        if policy == "all-to-all":
            found.append(Method("synchronous, multicast", everyone, round_s + step_s, round_gb, [1], False))
    ring = outcomes[RING].summary
    if ring is not None:
        # Every link of the ring carries each of the 2(N − 1) parts of the payload.
        ring_gb = 2 * (len(topology.islands) - 1) * REFERENCE_PAYLOAD_GB
        round_s = ring["measured"]["step_ms"] / 1e3
        found.append(Method("synchronous, ring all-reduce", everyone, round_s, ring_gb, [1], False))
    found.append(Method("islands alone", [[]], step_s, 0.0, [1], False))
    found.append(Method("one ideal machine", everyone, step_s, 0.0, [1], False))
    return found


def _full_size(summary: Mapping[str, Any]) -> float:
    """GB at full size of an emulated byte."""
    return 1e-9 / float(summary["rate_scale"])


def curves(topology: Topology, framing: Framing, found: Sequence[Method], workload: str, seed: int) -> list[Curve]:
    """The curve of each method on one workload, from one seed. Raises RunFailed."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda method: _curve(topology, framing, method, workload, seed), found))


def _curve(topology: Topology, framing: Framing, method: Method, workload: str, seed: int) -> Curve:
    rounds = int(TRAINED_S / method.round_s)
    outcome = train_plain(
        PlainTraining(
            workload,
            len(topology.islands),
            seed,
            framing.values,
            framing.values_per_chunk,
            method.schedule,
            rounds,
            method.steps,
            method.overlap,
            max(rounds // _POINTS, 1),
        )
    )
    points = []
    for done, evaluations in sorted((int(done), each) for done, each in outcome["curve"].items()):
        means = {name: sum(island[name] for island in evaluations) / len(evaluations) for name in evaluations[0]}
        points.append(
            {
                "rounds": done,
                "steps": sum(method.steps[number % len(method.steps)] for number in range(done)),
                "seconds": done * method.round_s,
                "gb": done * method.round_gb,
                **means,
                "worst_loss": max(island["loss"] for island in evaluations),
            }
        )
    return Curve(workload, method.name, points)


def statements(found: Sequence[Curve]) -> list[str]:
    """What the curves show, also where it is not what was published."""
    told = []
    for workload in dict.fromkeys(curve.workload for curve in found):
        of_workload = {curve.method: curve for curve in found if curve.workload == workload}
        order = sorted(of_workload.values(), key=lambda curve: curve.points[-1]["worst_loss"])
        ranking = ", ".join(f"{curve.method} {curve.points[-1]['worst_loss']:.3f}" for curve in order)
        told.append(f"{workload}: loss of the worst island after {TRAINED_S:g} s: {ranking}")
        ring = of_workload.get("synchronous, ring all-reduce")
        for curve in of_workload.values():
            if ring is not None and curve.method.endswith("overlapped"):
                told.append(f"{workload}: {_against(curve, ring)}")
    return told


def _against(curve: Curve, ring: Curve) -> str:
    """How much sooner a method's worst island is where ring all-reduce ends; steps alone would make it about 5×."""
    wanted, took_s = ring.points[-1]["worst_loss"], ring.points[-1]["seconds"]
    reached = next((point["seconds"] for point in curve.points if point["worst_loss"] <= wanted), None)
    if reached is None:
        return f"{curve.method} does not reach the loss that ring all-reduce has after {took_s:.0f} s"
    if not reached:
        return f"{curve.method}: ring all-reduce has learned nothing in {took_s:.0f} s"
    return (
        f"{curve.method} reaches the loss that ring all-reduce has after {took_s:.0f} s within {reached:.0f} s, "
        f"{took_s / reached:.1f} times sooner"
    )
