"""Bringing an epoch into operation: its trees installed, joined, compared with the plan and proven by probes."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from testbed.errors import RunFailed
from testbed.multicast.interface import RunningPlane
from testbed.run.probing import ProbedPath, probe_trees
from testbed.run.processes import Fleet
from testbed.run.program import Epoch
from testbed.run.startup import StartUp, announce_epoch

CONFIRM_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Readiness:
    """How an epoch became ready: wall-clock ms of each step, in order, and the proven paths."""

    steps_ms: Mapping[str, float]
    paths: list[ProbedPath]

    @property
    def installed_ms(self) -> float:
        """Until every router forwarded every tree as planned; the probes came after that."""
        return sum(self.steps_ms.values()) - self.steps_ms["probes"]


def introduce_epoch(fleet: Fleet, start_up: StartUp, plane: RunningPlane, epoch: Epoch) -> Readiness:
    """Make an epoch ready beside those that carry traffic. Raises RunFailed or MulticastError."""
    scale = start_up.settings.scale
    steps_ms: dict[str, float] = {}
    clock = time.monotonic()

    def note(step: str) -> None:
        nonlocal clock
        now = time.monotonic()
        steps_ms[step] = (now - clock) * 1e3
        clock = now

    trees = epoch.distinct_trees()
    start_up.network.add_host_addresses(tree.address for tree in trees)
    plane.install(trees)
    note("routes and entries")
    announce_epoch(fleet, start_up, epoch)
    note("joins")
    plane.confirm(trees, CONFIRM_TIMEOUT_S * scale.time_dilation)
    note("trees as planned")
    paths = probe_trees(fleet, epoch, start_up.topology, scale)
    if not paths:
        raise RunFailed("no island sends anything in this schedule")
    note("probes")
    return Readiness(steps_ms, paths)
