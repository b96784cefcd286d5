"""What the machine did to a round: frames, processes and senders that came late, or not at all.

A round that was measured on a machine that could not keep up says more about the machine than about the schedule. Each
round gets the reasons why it is not to be trusted, from figures that every part keeps anyway; none: it is.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from testbed.errors import RunFailed
from testbed.links.interface import Lateness, LinkError, RunningLinks
from testbed.run.processes import Process
from testbed.run.rounds import Counters, RoundRecord
from testbed.scale import Scale

# Undilated; docs/running.md explains them.
MOST_LINK_LATENESS_P99_MS = 1.0
MOST_LINK_LATENESS_MS = 10.0
MOST_SEND_LATENESS_P99_MS = 1.0
MOST_SEND_LATENESS_MS = 10.0
MOST_RECEIVE_WAIT_MS = 10.0
MOST_CPU_WAIT_MEAN_MS = 0.4

_STEAL = 8  # among the words of /proc/stat, whose first line begins with "cpu"


@dataclass(frozen=True)
class Waits:
    """How long a thread has been ready to run without a processor, and how often it was given one, so far."""

    waited_ns: int
    times: int


@dataclass(frozen=True)
class Strain:
    """The figures of one round, undilated; waits are of the worst process, `reasons` is empty for a trusted round.

    `receive_wait`: how long results lay at their host's socket; `slowest_host`: where the longest was. `compute_ms`:
    what the slowest island's training really took, of what it may have. `stolen_ms`: processor time that a hypervisor
    gave to others meanwhile, of all processors, in the kernel's steps of 10 ms; no reason by itself.
    """

    link_lateness_p99_ms: float
    link_lateness_max_ms: float
    worst_link: str
    link_drops: int
    socket_overflows: int
    send_lateness_p99_ms: float
    send_lateness_max_ms: float
    cpu_wait_ms: float
    cpu_wait_share: float
    cpu_wait_mean_ms: float
    waiting_process: str
    receive_wait_p99_ms: float = 0.0
    receive_wait_max_ms: float = 0.0
    slowest_host: str = ""
    stolen_ms: float = 0.0
    compute_ms: float = 0.0
    compute_allowed_ms: float = math.inf
    slowest_trainer: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def trustworthy(self) -> bool:
        return not self.reasons


class StrainGauge:
    """Reads the counters of links and processes around each round, and gives what came in it."""

    def __init__(self, links: RunningLinks, processes: Sequence[Process], scale: Scale, step_ns: int) -> None:
        """`processes`: those whose waiting for a processor makes a round late. `step_ns`: as in `strain_of`."""
        self._links = links
        self._processes = processes
        self._scale = scale
        self._step_ns = step_ns
        self._waits: dict[str, Waits] = {}
        self._stolen_ns = 0

    def begin(self) -> None:
        """A round is about to start: what its preparation took does not make it late."""
        self._waits = self._read_waits()
        self._stolen_ns = read_stolen_ns()

    def counters(self) -> Counters:
        """The links' counters. Raises RunFailed if the links have failed."""
        try:
            return self._links.counters()
        except LinkError as error:
            raise RunFailed(f"the links failed: {error}") from error

    def read(self, record: RoundRecord) -> Strain:
        """The strain of the round that has just ended."""
        waits = {}
        for name, now in self._read_waits().items():
            first = self._waits.get(name, now)  # more than now if the process was started again
            waits[name] = Waits(max(now.waited_ns - first.waited_ns, 0), max(now.times - first.times, 0))
        return strain_of(record, waits, self._scale, self._step_ns, read_stolen_ns() - self._stolen_ns)

    def _read_waits(self) -> dict[str, Waits]:
        """Of each process whose waiting makes a round late, the thread that has waited longest."""
        waits = {}
        for process in self._processes:
            tasks = Path(f"/proc/{process.child.pid}/task").glob("*/schedstat")
            try:
                figures = [task.read_text(encoding="ascii").split() for task in tasks]
                waits[process.name] = max((Waits(int(one[1]), int(one[2])) for one in figures), key=_waited_ns)
            except (OSError, ValueError, IndexError):
                continue  # gone, or a kernel that does not keep it
        return waits


def read_stolen_ns() -> int:
    """Processor time that a hypervisor has given to others since this machine started, of all processors."""
    ticks = Path("/proc/stat").read_text(encoding="ascii").split()[_STEAL]
    return int(ticks) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def strain_of(
    record: RoundRecord, waits: Mapping[str, Waits], scale: Scale, step_ns: int, stolen_ns: int = 0
) -> Strain:
    """What the machine did to a round, by the links' counters around it and the processes' own reports.

    `step_ns`: how long a step of training may take; 0: as long as it likes. `stolen_ns`: what a hypervisor took.
    """
    before, after = record.before, record.after
    lateness = {ends: now.lateness.since(before[ends].lateness) for ends, now in after.items()}
    worst = max(lateness, key=lambda ends: _longest_ns(lateness[ends]), default=("", ""))
    sends_us = [report["send_lateness_us"] for report in record.done.values()]
    receive_us = {host: report["receive_wait_us"] for host, report in record.done.items()}
    slowest = max(receive_us, key=lambda host: float(receive_us[host]["max"]), default="")
    waiting = max(waits, key=lambda name: waits[name].waited_ns, default="")
    wait = waits.get(waiting, Waits(0, 0))
    wait_ms = scale.undilated_ms(wait.waited_ns)
    overflows = [int(report["socket_overflows"]) for report in (*record.done.values(), *record.retired.values())]
    figures = Strain(
        link_lateness_p99_ms=scale.undilated_ms(max((one.quantile_ns(0.99) for one in lateness.values()), default=0)),
        link_lateness_max_ms=scale.undilated_ms(_longest_ns(lateness[worst])) if lateness else 0.0,
        worst_link=">".join(worst),
        link_drops=sum(now.dropped_other - before[ends].dropped_other for ends, now in after.items()),
        socket_overflows=sum(overflows),
        send_lateness_p99_ms=scale.undilated_ms(max((late["p99"] for late in sends_us), default=0.0) * 1e3),
        send_lateness_max_ms=scale.undilated_ms(max((late["max"] for late in sends_us), default=0.0) * 1e3),
        cpu_wait_ms=wait_ms,
        cpu_wait_share=wait_ms / scale.undilated_ms(record.completion_ns),
        cpu_wait_mean_ms=wait_ms / max(wait.times, 1),
        waiting_process=waiting,
        receive_wait_p99_ms=scale.undilated_ms(max((wait["p99"] for wait in receive_us.values()), default=0.0) * 1e3),
        receive_wait_max_ms=scale.undilated_ms(receive_us[slowest]["max"] * 1e3) if slowest else 0.0,
        slowest_host=slowest,
        stolen_ms=scale.undilated_ms(stolen_ns),
        **_training(record, scale, step_ns),
    )
    return replace(figures, reasons=tuple(_reasons(figures)))


def _training(record: RoundRecord, scale: Scale, step_ns: int) -> dict[str, Any]:
    slowest = max(record.trained, key=lambda island: int(record.trained[island]["compute_ns"]), default="")
    if not slowest or not step_ns:
        return {}
    report = record.trained[slowest]
    allowed_ms = scale.undilated_ms(report["steps"] * step_ns)
    return {
        "compute_ms": scale.undilated_ms(report["compute_ns"]) if report["steps"] else 0.0,
        "compute_allowed_ms": allowed_ms,
        "slowest_trainer": slowest,
    }


def suggestion(strains: Sequence[Strain], scale: Scale) -> str:
    """What to try instead, by how far the worst round was beyond what is trusted."""
    excess = max(
        max(
            one.link_lateness_p99_ms / MOST_LINK_LATENESS_P99_MS,
            one.link_lateness_max_ms / MOST_LINK_LATENESS_MS,
            one.send_lateness_p99_ms / MOST_SEND_LATENESS_P99_MS,
            one.send_lateness_max_ms / MOST_SEND_LATENESS_MS,
            one.receive_wait_max_ms / MOST_RECEIVE_WAIT_MS,
            one.cpu_wait_mean_ms / MOST_CPU_WAIT_MEAN_MS,
            one.compute_ms / max(one.compute_allowed_ms, 1e-9),
        )
        for one in strains
    )
    factor = 2 ** min(max(math.ceil(math.log2(max(excess, 1.0))), 1), 3)
    return f"--time-dilation {scale.time_dilation * factor:g}, or --rate-scale {scale.rate_scale / factor:g}"


def _reasons(strain: Strain) -> list[str]:
    reasons = []
    if strain.link_drops:
        reasons.append(f"links dropped {strain.link_drops} frames that they could not keep up with")
    if strain.socket_overflows:
        reasons.append(f"{strain.socket_overflows} datagrams overflowed a socket")
    if strain.link_lateness_p99_ms > MOST_LINK_LATENESS_P99_MS or strain.link_lateness_max_ms > MOST_LINK_LATENESS_MS:
        reasons.append(
            f"links released frames late: p99 {strain.link_lateness_p99_ms:.1f} ms, "
            f"worst {strain.link_lateness_max_ms:.1f} ms ({strain.worst_link})"
        )
    if strain.send_lateness_p99_ms > MOST_SEND_LATENESS_P99_MS or strain.send_lateness_max_ms > MOST_SEND_LATENESS_MS:
        reasons.append(
            f"hosts sent late: p99 {strain.send_lateness_p99_ms:.1f} ms, worst {strain.send_lateness_max_ms:.1f} ms"
        )
    if strain.receive_wait_max_ms > MOST_RECEIVE_WAIT_MS:
        reasons.append(
            f"hosts took results in late: p99 {strain.receive_wait_p99_ms:.1f} ms, "
            f"worst {strain.receive_wait_max_ms:.1f} ms ({strain.slowest_host})"
        )
    if strain.cpu_wait_mean_ms > MOST_CPU_WAIT_MEAN_MS:
        reasons.append(
            f"{strain.waiting_process} waited {strain.cpu_wait_ms:.0f} ms for a processor, "
            f"{strain.cpu_wait_mean_ms:.1f} ms each time"
        )
    if strain.compute_ms > strain.compute_allowed_ms:
        reasons.append(
            f"the training of {strain.slowest_trainer} really took {strain.compute_ms:.0f} ms of the "
            f"{strain.compute_allowed_ms:.0f} ms that its steps may take"
        )
    if reasons and strain.stolen_ms:
        reasons.append(f"meanwhile a hypervisor gave {strain.stolen_ms:.0f} ms of these processors to others")
    return reasons


def _waited_ns(waits: Waits) -> int:
    return waits.waited_ns


def _longest_ns(lateness: Lateness) -> int:
    return lateness.buckets[-1][0] if lateness.buckets else 0


def strain_to_json(strain: Strain) -> dict[str, Any]:
    figures = {name: None if value == math.inf else value for name, value in vars(strain).items()}
    return {**figures, "reasons": list(strain.reasons), "trustworthy": strain.trustworthy}
