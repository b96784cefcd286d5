"""Measures every direction of running links against what was asked; the full check, and the quick one before a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from testbed.links.interface import Direction, Link
from testbed.scale import Scale
from testbed.verify.judging import Finding, Tolerance, judge
from testbed.verify.measuring import FULL, QUICK, Effort, measure_light_load, measure_saturation
from testbed.verify.ports import Ports

# Few probes and short bursts on a machine that may be busy: enough to find physics that is not what was asked.
_QUICK_TOLERANCE = Tolerance(delay_ms=1.0, delay_share=0.02, rate_share=0.15, rate_must_be_measured=False)
# What is wrong only while something else has the processors is found right by the next try.
_QUICK_TRIES = 6


def check_links(links: Sequence[Link], pids: Mapping[str, int], scale: Scale) -> list[Finding]:
    """Measure all directions of idle links, within seconds. `pids` maps nodes to processes in their namespaces.

    Raises LinkError if probes cannot be sent.
    """
    return _check(links, pids, scale, FULL, Tolerance())


def check_links_quickly(links: Sequence[Link], pids: Mapping[str, int], scale: Scale) -> list[Finding]:
    """The same in less than a second, with wider tolerances; links that seem wrong are tried again.

    Raises LinkError if probes cannot be sent.
    """
    findings: dict[str, Finding] = {}
    suspects = list(links)
    for _ in range(_QUICK_TRIES):
        again = _check(suspects, pids, scale, QUICK, _QUICK_TOLERANCE)
        findings |= {finding.link: finding for finding in again}
        suspects = [link for link in links if not all(findings[name].ok for name in direction_names(link))]
        if not suspects:
            break
    return list(findings.values())


def direction_names(link: Link) -> tuple[str, str]:
    """The names of a link's two directions."""
    return f"{link.a.node}>{link.b.node}", f"{link.b.node}>{link.a.node}"


def _check(
    links: Sequence[Link], pids: Mapping[str, int], scale: Scale, effort: Effort, tolerance: Tolerance
) -> list[Finding]:
    names: list[str] = []
    asked: list[Direction] = []
    for link in links:
        names += direction_names(link)
        asked += [link.forward, link.backward]
    effort = _dilated(effort, scale)
    with Ports(links, pids) as ports:
        saturations = measure_saturation(ports, asked, effort)
        loads = measure_light_load(ports, asked, effort)
    return [
        judge(name, direction, light, saturation, scale, tolerance)
        for name, direction, light, saturation in zip(names, asked, loads, saturations, strict=True)
    ]


def _dilated(effort: Effort, scale: Scale) -> Effort:
    """The same number of frames over so much more time: a slow machine is not to be measured with its own load."""
    dilation = scale.time_dilation
    return replace(
        effort,
        interval_ns=round(effort.interval_ns * dilation),
        burst_ns=round(effort.burst_ns * dilation),
        spacing_ns=round(effort.spacing_ns * dilation),
    )
