"""Pictures of loss and recovery: how long repairs took, when packets were lost and repaired, and one recovery."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from testbed.analyze.captures import Captures, Point
from testbed.analyze.explain import Sight, losses
from testbed.analyze.flows import CONTRIBUTION, REPAIR
from testbed.analyze.judging import class_name
from testbed.analyze.results import Analysis
from testbed.errors import TestbedError

_BINS = 60
_PLACES = 7
"""So many links have a colour of their own, those with the most losses."""
_PLACE_COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#884400")
_OTHERS_COLOUR = "#bbbbbb"
_COLOURS = {
    "contribution": "#4477aa",
    "result": "#228833",
    "result without it": "#99cc99",
    "nack": "#ee6677",
    "fetch": "#ee6677",
    "gone": "#aa3377",
    "repair": "#bb8800",
    "fetched": "#bb8800",
}
_WORDS = {
    "nack": "NACK",
    "fetch": "request to fetch",
    "repair": "result again",
    "fetched": "contribution again",
}


def plot_recovery(analysis: Analysis, captures: Captures, title: str, sights: Sequence[Sight], path: Path) -> None:
    """Draw an analysis, and the life of one packet if there is one, `title`, to a file; its ending gives the format.

    Raises TestbedError if that cannot be.
    """
    figure = Figure(figsize=(12, 12 if sights else 5), layout="constrained")
    parts: Any = figure.subfigures(2 if sights else 1, 1, height_ratios=[4, 6] if sights else [1], squeeze=False)
    latencies, times = parts[0, 0].subplots(1, 2)
    _latencies(latencies, analysis.repair.latencies_ms)
    _over_time(times, analysis)
    if sights:
        _sequence(parts[1, 0].subplots(), captures, title, sights)
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise TestbedError(f"--plot {path}: {error.strerror}") from None
    except ValueError as error:
        raise TestbedError(f"--plot {path}: {error}") from None


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
        _say(axis, "no repairs")


def _say(axis: Any, words: str) -> None:
    """Words in place of a diagram."""
    axis.text(0.5, 0.5, words, ha="center", transform=axis.transAxes)
    axis.set_xticks([])
    axis.set_yticks([])


def _over_time(axis: Any, analysis: Analysis) -> None:
    axis.set_title("loss and repair over time")
    axis.set_xlabel("s since the captures began")
    lost = [packet for packet in analysis.lost if packet.source is not None]
    repaired_s = [(time_ns - analysis.start_ns) / 1e9 for time_ns, _ in analysis.repair_times_ns]
    if not lost and not repaired_s:
        _say(axis, "nothing lost")
        return
    most = [place for place, _ in Counter(packet.place for packet in lost).most_common(_PLACES)]
    times_s: dict[str, list[float]] = {place: [] for place in [*most, "other links"]}
    for packet in lost:
        place = packet.place if packet.place in most else "other links"
        times_s[place].append((packet.time_ns - analysis.start_ns) / 1e9)
    times_s = {place: each for place, each in times_s.items() if each}
    everything = [*repaired_s, *(time_s for each in times_s.values() for time_s in each)]
    edges = np.linspace(min(everything), max(everything) or 1.0, _BINS + 1)
    colours = dict(zip(most, _PLACE_COLOURS, strict=False))
    if times_s:
        axis.hist(
            list(times_s.values()),
            edges,
            stacked=True,
            color=[colours.get(place, _OTHERS_COLOUR) for place in times_s],
            label=[f"lost on {place}: {len(each)}" for place, each in times_s.items()],
        )
    if repaired_s:
        axis.hist(repaired_s, edges, histtype="step", color="black", label=f"repaired: {len(repaired_s)}")
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_ylabel(f"packets in {(edges[1] - edges[0]) * 1e3:.0f} ms")
    axis.legend(fontsize="small", ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)


def _sequence(axis: Any, captures: Captures, title: str, sights: Sequence[Sight]) -> None:
    """Nodes side by side, time downwards; an arrow for each crossing, a cross where it ended on the way."""
    lost = {id(sight) for group in losses(captures, sights).values() for sight in group}
    nodes = _columns(_affected(captures, sights, lost), sights)
    place = {node: k for k, node in enumerate(nodes)}
    begin_ns = sights[0].time_ns
    arrivals: dict[tuple[int, int], list[int]] = {}
    for sight in sights:
        if not sight.point.outbound:
            arrivals.setdefault((sight.identity, sight.point.number), []).append(sight.time_ns)
    drawn: set[str] = set()
    for sight in (sight for sight in sights if sight.point.outbound and {sight.point.node, sight.peer} <= set(nodes)):
        name = class_name(sight.kind)
        if name == "result" and not sight.holds:
            name = "result without it"
        colour = _COLOURS.get(name, "#222222")
        style = "--" if sight.kind & REPAIR or name == "fetched" else "-"
        x, y = place[sight.point.node], (sight.time_ns - begin_ns) / 1e6
        there = place[sight.peer]
        peer = captures.peers.get(sight.point.number, -1)
        came = arrivals.get((sight.identity, peer), [])
        label = _WORDS.get(name, name) if name not in drawn else None
        if id(sight) in lost or not came:
            middle = (x + there) / 2
            axis.plot([x, middle], [y, y], style, color=colour, label=label)
            if id(sight) in lost:
                axis.plot([middle], [y], "x", color="red", markersize=10, markeredgewidth=2.5, zorder=3)
        else:
            end = (came.pop(0) - begin_ns) / 1e6
            axis.plot([x, there], [y, end], style, color=colour, label=label)
            axis.plot([there], [end], ">" if there > x else "<", color=colour, markersize=5)
        drawn.add(name)
    axis.set_xticks(range(len(nodes)), nodes, rotation=30)
    axis.set_xlim(-0.3, len(nodes) - 0.7)
    axis.invert_yaxis()
    axis.set_ylabel("ms since the first sighting")
    axis.set_title(title)
    axis.grid(axis="x", alpha=0.3)
    axis.legend(fontsize="small", ncols=6, loc="upper center", bbox_to_anchor=(0.5, -0.1), frameon=False)


def _affected(captures: Captures, sights: Sequence[Sight], lost: set[int]) -> set[str]:
    """The nodes to show: if anything was lost or asked for again, those on the way to islands that this concerns."""
    every = {node for sight in sights for node in (sight.point.node, sight.peer) if node}
    plain = {sight.point.island for sight in sights if sight.kind == CONTRIBUTION and _is_source(sight.point)}
    concerned = {
        _island_of(captures, node)
        for sight in sights
        if id(sight) in lost or not (sight.kind == CONTRIBUTION or sight.holds)
        for node in (sight.point.node, sight.peer)
    }
    if not concerned:
        return every
    shown = {node for node in every if _island_of(captures, node) in concerned | plain}
    # And the routers between, by the way that the contribution went.
    before = {sight.peer: sight.point.node for sight in sights if sight.kind == CONTRIBUTION and sight.point.outbound}
    for start in list(shown):
        node, seen = start, {start}
        while (node := before.get(node, "")) and node not in seen:
            seen.add(node)
        shown |= seen
    return shown


def _is_source(point: Point) -> bool:
    return point.is_host and point.outbound


def _island_of(captures: Captures, node: str) -> str:
    return next((point.island for point in captures.points if point.node == node), node)


def _columns(nodes: set[str], sights: Sequence[Sight]) -> list[str]:
    """The nodes from left to right: the source's, then island by island as they were reached, the router first."""
    met = list(dict.fromkeys(node for sight in sights for node in (sight.point.node, sight.peer) if node in nodes))
    islands = list(dict.fromkeys(node.split("-")[0] for node in met))
    inwards = sorted(met, key=lambda node: (islands.index(node.split("-")[0]), _depth(node)))
    first = [node for node in inwards if node.split("-")[0] == islands[0]]
    return [*reversed(first), *inwards[len(first) :]]


def _depth(node: str) -> tuple[int, str]:
    """How far inside an island: router, edge, LAN, hosts."""
    part = node.partition("-")[2]
    return (("", "e", "lan").index(part) if part in {"", "e", "lan"} else 3, node)
