"""Pictures of loss and recovery: how long repairs took, when packets were lost and repaired, and one recovery."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from testbed.analyze.captures import Captures
from testbed.analyze.explain import Sight, losses
from testbed.analyze.flows import REPAIR
from testbed.analyze.judging import class_name
from testbed.analyze.results import Analysis
from testbed.errors import TestbedError

_BINS = 60
_COLOURS = {
    "contribution": "#4477aa",
    "result": "#228833",
    "nack": "#ee6677",
    "fetch": "#ee6677",
    "gone": "#aa3377",
    "repair": "#ccbb44",
    "fetched": "#ccbb44",
}


def plot_recovery(analysis: Analysis, captures: Captures, sights: Sequence[Sight], path: Path) -> None:
    """Draw an analysis, and the life of one packet if there is one, to a file; its ending gives the format.

    Raises TestbedError if that cannot be.
    """
    figure = Figure(figsize=(12, 11 if sights else 5), layout="constrained")
    parts: Any = figure.subfigures(2 if sights else 1, 1, height_ratios=[5, 6] if sights else [1], squeeze=False)
    latencies, times = parts[0, 0].subplots(1, 2)
    _latencies(latencies, analysis.repair.latencies_ms)
    _over_time(times, analysis)
    if sights:
        _sequence(parts[1, 0].subplots(), captures, sights)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise TestbedError(f"--plot {path}: cannot be written: {error}") from None


def _latencies(axis: Any, latencies_ms: Sequence[float]) -> None:
    axis.set_title("repair latency, from the first request")
    axis.set_xlabel("ms")
    axis.set_ylabel("share of repairs")
    axis.set_ylim(0, 1.02)
    axis.grid(alpha=0.3)
    if latencies_ms:
        axis.step([latencies_ms[0], *latencies_ms], np.arange(len(latencies_ms) + 1) / len(latencies_ms), where="post")
        axis.set_xlim(left=0)
    else:
        axis.text(0.5, 0.5, "no repairs", ha="center", transform=axis.transAxes)


def _over_time(axis: Any, analysis: Analysis) -> None:
    span_s = (analysis.end_ns - analysis.start_ns) / 1e9
    edges = np.linspace(0, span_s, _BINS + 1)
    places = sorted({packet.place for packet in analysis.lost})
    series = {
        place: [(packet.time_ns - analysis.start_ns) / 1e9 for packet in analysis.lost if packet.place == place]
        for place in places
    }
    if series:
        axis.hist(list(series.values()), edges, stacked=True, label=[f"lost on {place}" for place in places])
    repaired = [(time_ns - analysis.start_ns) / 1e9 for time_ns, _ in analysis.repair.times_ns]
    if repaired:
        axis.hist(repaired, edges, histtype="step", color="black", label="repaired")
    axis.set_title("loss and repair over time")
    axis.set_xlabel("s")
    axis.set_ylabel(f"packets in {span_s / _BINS * 1e3:.0f} ms")
    if series or repaired:
        axis.legend(fontsize="small", ncols=1 + len(places) // 12)


def _sequence(axis: Any, captures: Captures, sights: Sequence[Sight]) -> None:
    """Nodes side by side, time downwards; an arrow for each crossing, a cross where it ended on the way."""
    nodes = list(dict.fromkeys(sight.point.node for sight in sights))
    nodes += [sight.peer for sight in sights if sight.peer and sight.peer not in nodes]
    nodes = list(dict.fromkeys(nodes))
    place = {node: k for k, node in enumerate(nodes)}
    begin_ns = sights[0].time_ns
    arrivals: dict[tuple[int, int], list[int]] = {}
    for sight in sights:
        if not sight.point.outbound:
            arrivals.setdefault((sight.identity, sight.point.number), []).append(sight.time_ns)
    lost = {id(sight) for group in losses(captures, sights).values() for sight in group}
    drawn: set[str] = set()
    for sight in (sight for sight in sights if sight.point.outbound and sight.peer):
        name = class_name(sight.kind)
        colour = _COLOURS.get(name, "#222222")
        style = "--" if sight.kind & REPAIR else "-"
        x, y = place[sight.point.node], (sight.time_ns - begin_ns) / 1e6
        there = place[sight.peer]
        peer = captures.peers.get(sight.point.number, -1)
        came = arrivals.get((sight.identity, peer), [])
        label = name if name not in drawn else None
        if id(sight) in lost or not came:
            middle = (x + there) / 2
            axis.plot([x, middle], [y, y], style, color=colour, label=label)
            if id(sight) in lost:
                axis.plot([middle], [y], "x", color="red", markersize=9)
        else:
            end = (came.pop(0) - begin_ns) / 1e6
            axis.plot([x, there], [y, end], style, color=colour, label=label)
            axis.plot([there], [end], ">" if there > x else "<", color=colour, markersize=4)
        drawn.add(name)
    axis.set_xticks(range(len(nodes)), nodes, rotation=30)
    axis.set_xlim(-0.3, len(nodes) - 0.7)
    axis.invert_yaxis()
    axis.set_ylabel("ms since the first sighting")
    axis.set_title("one recovery" if lost else "one packet")
    axis.grid(axis="x", alpha=0.3)
    axis.legend(fontsize="small")
