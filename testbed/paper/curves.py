"""Loss curves of the ways to train, against rounds, steps, seconds and bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from testbed.baselines.plain import PlainTraining
from testbed.baselines.ring import WARM_UP_STEPS, run_ring
from testbed.paper.methods import Method
from testbed.run.frames import Framing
from testbed.run.settings import RunSettings

_POINTS = 20  # of a curve, beside its first


@dataclass(frozen=True)
class Curve:
    """`points[]` {rounds, steps, seconds, gb (on all core links), loss (mean of the islands), worst_loss, …}.

    `networked`: trained over the emulated network; else in one plain process.
    """

    workload: str
    method: str
    networked: bool
    points: Sequence[Mapping[str, float]]


def plain_training(islands: int, framing: Framing, method: Method, workload: str, seed: int) -> PlainTraining:
    """What a plain process does for a method's curve: the numbers are the same as a run's."""
    return PlainTraining(
        workload,
        islands,
        seed,
        framing.values,
        framing.values_per_chunk,
        method.schedule,
        method.rounds,
        method.steps,
        method.overlap,
        _every(method),
    )


def plain_curve(method: Method, workload: str, outcome: Mapping[str, Any]) -> Curve:
    """The curve of a plain process's outcome."""
    last = {str(method.rounds): outcome["evaluations"]}
    return Curve(workload, method.name, False, _points(method, {**outcome["curve"], **last}))


def ring_curve(method: Method, settings: RunSettings, console: Console) -> Curve:
    """Train by ring all-reduce over the network, since no plain process adds floats in its order.

    `settings`: with the workload; as many steps as there is time for. Raises RunFailed or TestbedError.
    """
    summary = run_ring(settings, console, _every(method))
    last = {str(settings.rounds): summary["evaluations"]}
    curve = {steps: list(of_islands.values()) for steps, of_islands in {**summary["curve"], **last}.items()}
    return Curve(settings.workload, method.name, True, _points(method, curve))


def ring_steps(method: Method) -> int:
    return max(method.rounds, WARM_UP_STEPS + 1)


def _every(method: Method) -> int:
    return max(method.rounds // _POINTS, 1)


def _points(method: Method, curve: Mapping[str, Sequence[Mapping[str, float]]]) -> list[dict[str, float]]:
    """From the islands' evaluations by rounds done; times and bytes are those that were measured of a round."""
    points = []
    for done, evaluations in sorted((int(done), each) for done, each in curve.items()):
        means = {name: sum(island[name] for island in evaluations) / len(evaluations) for name in evaluations[0]}
        points.append(
            {
                "rounds": done,
                "steps": method.steps_in(done),
                "seconds": done * method.round_s,
                "gb": done * method.round_gb,
                **means,
                "worst_loss": max(island["loss"] for island in evaluations),
            }
        )
    return points
