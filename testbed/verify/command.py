"""Builds a network without agents, for no other purpose than to measure its links."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from testbed.links.kinds import choose_link_kind
from testbed.live.settings import LinkSetting, applied
from testbed.network import naming
from testbed.network.emulated import build_network, emulated_links
from testbed.run.machine import check_machine
from testbed.run.state import marked_run
from testbed.scale import Scale
from testbed.topology.load import load_topology
from testbed.verify.check import check_links
from testbed.verify.judging import Finding


@dataclass(frozen=True)
class Verified:
    """The findings of all directions, and what the machine did not grant."""

    topology: str
    links_kind: str
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]


def verify_network(
    topology_name: str,
    links_name: str,
    scale: Scale,
    seed: int,
    settings: Sequence[LinkSetting],
    console: Console,
) -> Verified:
    """Build the links of a topology, measure them and remove them; progress goes to `console`.

    Raises TestbedError or SchedulerError, before anything is changed, or LinkError, with nothing left.
    """
    topology = load_topology(topology_name)
    naming.check_names(topology)
    links = applied(emulated_links(topology, scale, seed), settings, scale)
    check_machine(3 * len(topology.islands) + len(topology.transits))
    kind = choose_link_kind(links_name, links)
    with marked_run() as state:
        began = time.monotonic()
        network = build_network(topology, links, kind, state.run_id)
        try:
            console.print(
                f"network: {len(network.pids)} nodes and {len(links)} links of kind {kind.name} "
                f"in {time.monotonic() - began:.2f} s; measuring"
            )
            began = time.monotonic()
            findings = check_links(links, network.pids, scale)
            console.print(f"measured {len(findings)} directions in {time.monotonic() - began:.1f} s")
            warnings = tuple(network.links.warnings)
        finally:
            network.close()
    return Verified(topology.name, kind.name, tuple(findings), warnings)
