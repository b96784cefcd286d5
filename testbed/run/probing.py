"""Proof before traffic: every tree carries a probe to each of its receivers, in the planned time."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scheduler.topology import Topology
from testbed.errors import RunFailed
from testbed.run.processes import ANSWER_TIMEOUT_S, Fleet
from testbed.run.program import Epoch
from testbed.scale import Scale

LEAST_PROBES = 3  # the first may be late for look-ups and cold caches
# A busy machine holds frames up for seconds at times: what is wrong only while it lasts is not the links'.
PATIENCE_S = 10.0  # undilated
GAP_S = 0.02  # undilated; between the first ones, and on top of the longest way
LONGEST_GAP_S = 0.5  # undilated
# A probe's one-way time may differ from the planned delay by this: the machine's own lateness, not the links'.
TOLERANCE_MS = 2.0
TOLERANCE_SHARE = 0.05


@dataclass(frozen=True)
class ProbedPath:
    """One receiver of one tree: its planned and its measured one-way delay, edge access link included."""

    group: str
    source: str
    receiver: str
    planned_ms: float
    measured_ms: float

    @property
    def ok(self) -> bool:
        error_ms = abs(self.measured_ms - self.planned_ms)
        return error_ms <= TOLERANCE_MS + TOLERANCE_SHARE * self.planned_ms


def probe_trees(
    fleet: Fleet,
    epoch: Epoch,
    topology: Topology,
    scale: Scale,
    numbers: Iterator[int],
    outdated: Callable[[], bool],
) -> list[ProbedPath]:
    """Send probes on every tree until every receiver has had one on time, for PATIENCE_S or until it is `outdated`.

    `numbers` are for probes, and were not used before in the run. Returns every path with its best measured delay.
    Raises RunFailed if a receiver gets no probe, or none with the planned delay.
    """
    planned_ms = {
        (tree.group, receiver): delay_ms
        for tree in epoch.trees.values()
        for receiver, delay_ms in _path_delays(tree.source, tree.links, topology).items()
        if receiver in tree.receivers
    }
    sources = {tree.group: tree.source for tree in epoch.trees.values()}
    best_ms: dict[tuple[str, str], float] = {}
    longest_s = scale.emulated_ns(max(planned_ms.values(), default=0.0)) / 1e9
    timeout_s = ANSWER_TIMEOUT_S * scale.time_dilation
    paths: list[ProbedPath] = []
    sent: list[int] = []
    gap_s = GAP_S
    deadline = time.monotonic() + PATIENCE_S * scale.time_dilation
    for probes in itertools.count(1):
        sent.append(next(numbers))
        to_send = {process: {"epoch": epoch.number, "probe": sent[-1]} for process in fleet.of("dataplane")}
        fleet.ask(to_send, "probe", "probed", timeout_s)
        if probes < LEAST_PROBES:
            fleet.wait(GAP_S * scale.time_dilation)
            continue
        fleet.wait(longest_s + gap_s * scale.time_dilation)
        gap_s = min(2 * gap_s, LONGEST_GAP_S)
        for probe in sent:
            to_report = {process: {"probe": probe} for process in fleet.of("edge")}
            for process, report in fleet.ask(to_report, "probe_report", "probe_report", timeout_s).items():
                for group, sent_ns, arrival_ns in report["arrivals"]:
                    key = group, process.island
                    best_ms[key] = min(best_ms.get(key, float("inf")), scale.undilated_ms(arrival_ns - sent_ns))
        sent.clear()
        paths = [
            ProbedPath(group, sources[group], receiver, planned_ms[group, receiver], measured_ms)
            for (group, receiver), measured_ms in sorted(best_ms.items())
            if (group, receiver) in planned_ms
        ]
        on_time = len(paths) == len(planned_ms) and all(path.ok for path in paths)
        if on_time:
            return paths
        if outdated() or time.monotonic() > deadline:
            break
    missing = sorted(set(planned_ms) - set(best_ms))
    if missing:
        group, receiver = missing[0]
        raise RunFailed(
            f"{len(missing)} of {len(planned_ms)} multicast paths carry nothing, "
            f"the first {sources[group]} to {receiver} (group {group})"
        )
    wrong = next(path for path in paths if not path.ok)
    raise RunFailed(
        f"path {wrong.source} to {wrong.receiver}: one-way delay measured {wrong.measured_ms:.2f} ms, "
        f"planned {wrong.planned_ms:.2f} ms; the machine is too busy or too slow: try a larger --time-dilation"
    )


def _path_delays(source: str, links: tuple[tuple[str, str], ...], topology: Topology) -> dict[str, float]:
    """One-way delay in ms from the source's host to each router of a tree."""
    islands = {island.id: island for island in topology.islands}
    one_way_ms = {(link.source, link.target): link.one_way_delay_ms for link in topology.links}
    delays = {source: islands[source].access_one_way_delay_ms}
    for parent, child in links:
        delays[child] = delays[parent] + one_way_ms[parent, child]
    return delays
