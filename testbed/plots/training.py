"""Loss curves against rounds, seconds and bytes."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.errors import TestbedError
from testbed.paper.curves import Curve

_AXES = (("rounds", "rounds"), ("seconds", "seconds"), ("gb", "GB on core links"))
_LABELLED = "12346"  # first digits of ticks


def check_plot(path: Path) -> None:
    """Raise TestbedError for a file that no plot can become: what takes long is not to be lost at the end."""
    ending = path.suffix.lstrip(".").lower()
    known = Figure().canvas.get_supported_filetypes()
    if ending not in known:
        raise TestbedError(f"--plot {path}: no plot ends so; use .png, .svg or .pdf")
    if not path.absolute().parent.is_dir():
        raise TestbedError(f"--plot {path}: there is no directory {path.absolute().parent}; make it first")


def plot_curves(curves: Sequence[Curve], path: Path) -> None:
    """Draw the worst island's loss to a file; its ending gives the format. Raises TestbedError if that cannot be."""
    workloads = list(dict.fromkeys(curve.workload for curve in curves))
    names = list(dict.fromkeys(curve.method for curve in curves))
    figure = Figure(figsize=(15.0, 4.5 * len(workloads) + 0.8), layout="constrained")
    axes = figure.subplots(len(workloads), len(_AXES), squeeze=False)
    for row, workload in zip(axes, workloads, strict=True):
        of_workload = [curve for curve in curves if curve.workload == workload]
        for axis, (name, label) in zip(row, _AXES, strict=True):
            for curve in of_workload:
                if name != "gb" or curve.points[-1]["gb"]:
                    _draw(axis, curve, name, names.index(curve.method))
            axis.set_xlabel(label)
            axis.grid(alpha=0.3)
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(_plainly)
            axis.yaxis.set_minor_formatter(_plainly)
        row[0].set_ylabel(f"{workload}: loss of the worst island")
    handles = {line.get_label(): line for axis in axes.flat for line in axis.get_lines()}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise TestbedError(f"--plot {path}: cannot be written: {error}") from None


def _plainly(value: float, _position: int | None) -> str:
    """A tick's label: 0.3, and not a power of ten."""
    return f"{value:g}" if f"{value:e}"[0] in _LABELLED else ""


def _draw(axis: Axes, curve: Curve, against: str, number: int) -> None:
    """One curve; the number of its method gives its colour, the same everywhere. Dashed without overlap."""
    axis.plot(
        [point[against] for point in curve.points],
        [point["worst_loss"] for point in curve.points],
        color=f"C{number}",
        linestyle="-" if curve.method.endswith("overlapped") else "--",
        marker=".",
        label=curve.method,
    )
