"""Loss curves against seconds, steps and bytes."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from testbed.errors import TestbedError
from testbed.paper.training import Curve

_AXES = (("seconds", "seconds"), ("steps", "steps of each island"), ("gb", "GB on core links"))


def plot_curves(curves: Sequence[Curve], path: Path) -> None:
    """Draw the worst island's loss to a file; its ending gives the format. Raises TestbedError if that cannot be."""
    workloads = list(dict.fromkeys(curve.workload for curve in curves))
    figure = Figure(figsize=(15.0, 4.5 * len(workloads)), layout="constrained")
    axes = figure.subplots(len(workloads), len(_AXES), squeeze=False)
    for row, workload in zip(axes, workloads, strict=True):
        for axis, (name, label) in zip(row, _AXES, strict=True):
            for curve in curves:
                if curve.workload == workload and (name != "gb" or curve.points[-1]["gb"]):
                    at = [point[name] for point in curve.points]
                    axis.plot(at, [point["worst_loss"] for point in curve.points], marker=".", label=curve.method)
            axis.set_xlabel(label)
            axis.set_ylabel(f"{workload}: loss of the worst island")
            axis.grid(alpha=0.3)
        row[0].legend(fontsize="small")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise TestbedError(f"--plot {path}: cannot be written: {error}") from None
