"""Where frames can be captured, and the choice among these places by name."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.topology import Topology
from testbed.errors import TestbedError
from testbed.links.interface import Link, LinkEnd
from testbed.network import naming
from testbed.network.emulated import site_wires

GROUPS = ("all", "core", "access")


@dataclass(frozen=True)
class CapturePoint:
    """An interface of a node: one end of a link. `kind` of the link: core, access, or wire (inside a site)."""

    node: str
    interface: str
    link: str
    kind: str
    peer: LinkEnd

    @property
    def name(self) -> str:
        return f"{self.node}:{self.interface}"

    @property
    def description(self) -> str:
        return f"{self.kind} link {self.link}, at {self.node} towards {self.peer.node}"

    @property
    def comment(self) -> str:
        """What analyze reads: words of name=value."""
        return (
            f"testbed node={self.node} interface={self.interface} link={self.link} kind={self.kind} "
            f"peer={self.peer.node}:{self.peer.interface}"
        )


def capture_points(topology: Topology, links: Iterable[Link], hosts: int) -> tuple[CapturePoint, ...]:
    """Both ends of every link, emulated or not, of a topology's network."""
    core = {pair.name for pair in naming.core_pairs(topology)}
    named = [(link.name, "core" if link.name in core else "access", link.a, link.b) for link in links]
    named += [(f"{a.node}-{b.node}", "wire", a, b) for a, b in site_wires(topology, hosts)]
    return tuple(
        CapturePoint(here.node, here.interface, name, kind, there)
        for name, kind, a, b in named
        for here, there in ((a, b), (b, a))
    )


def choose_points(points: Sequence[CapturePoint], wanted: Sequence[str]) -> tuple[CapturePoint, ...]:
    """The points that are named: all, core, access, or NODE:LINK for one end of a link.

    Raises TestbedError for a name of nothing.
    """
    chosen: set[CapturePoint] = set()
    for name in wanted:
        node, _, link = name.partition(":")
        found = [point for point in points if name in {"all", point.kind} or (point.node, point.link) == (node, link)]
        if not found or name == "wire":
            there = ", ".join(point.link for point in points if point.node == node)
            hint = f"{node} has {there}" if there else f"NODE:LINK is, for example, {points[0].node}:{points[0].link}"
            raise TestbedError(f"--capture {name}: neither {', '.join(GROUPS)} nor NODE:LINK; {hint}")
        chosen.update(found)
    return tuple(point for point in points if point in chosen)
