"""What a multicast plane is. Read this first; each plane has a module of its own beside this one."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scheduler.topology import Topology
from testbed.multicast.groups import Tree


class MulticastError(Exception):
    """A plane cannot carry the trees; the message is one line and names the way out."""


@dataclass(frozen=True)
class Site:
    """The network that a plane runs on. `pids` maps nodes to processes in their namespaces.

    `run_id` marks what is started; what the user may want to read afterwards goes to `directory`.
    """

    topology: Topology
    pids: Mapping[str, int]
    run_id: str
    directory: Path


class RunningPlane(Protocol):
    """A plane in operation on a network. Calls may come from any thread."""

    @property
    def timings_ms(self) -> Mapping[str, float]:
        """What starting it took, by step, in order."""
        ...

    def install(self, trees: Collection[Tree]) -> None:
        """Have the routers forward `trees`, which must be new, as soon as receivers join. Raises MulticastError."""
        ...

    def confirm(self, trees: Collection[Tree], timeout_s: float) -> None:
        """Wait until every router forwards `trees` exactly as planned; their receivers have joined.

        Raises MulticastError that names the first router that does not within `timeout_s`.
        """
        ...

    def move(self, trees: Mapping[Tree, Tree]) -> None:
        """Carry each installed tree over other links, as a link of it has failed. Raises MulticastError.

        Source address and group stay, so what is on its way may be lost. Routers that find ways do it by
        themselves: `are_followed` tells when.
        """
        ...

    def remove(self, trees: Collection[Tree]) -> None:
        """Forget `trees`; others stay as they are. Raises MulticastError."""
        ...

    def check(self) -> None:
        """Raise MulticastError, which says who, if something that the plane needs has ended."""
        ...

    def are_followed(self, trees: Collection[Tree]) -> bool:
        """Whether packets now go by `trees`, which are installed. Only where routers find ways can it be otherwise.

        Raises OSError.
        """
        ...

    def routing_bytes(self) -> Mapping[tuple[str, str], int]:
        """On-wire bytes that the plane itself has put on core links so far, by (sending, receiving router)."""
        ...

    def close(self) -> None:
        """Forget all trees. Safe to call twice."""
        ...


class MulticastPlane(Protocol):
    """A way to bring each packet to all of its receivers.

    With `copies` the sender sends one to each; its trees then say which way they go. With `finds_ways` the routers find
    all ways by themselves, over the shortest delays, also when links fail.
    """

    name: str
    copies: bool
    finds_ways: bool

    def refusal(self, topology: Topology, trees: Sequence[Tree]) -> str | None:
        """Why this machine, or this plane, cannot carry `trees`: one line with the way out; None if it can.

        Changes nothing: it is asked before anything is built.
        """
        ...

    def start(self, site: Site) -> RunningPlane:
        """Start the plane on the routers of a network. Raises MulticastError, with nothing left behind."""
        ...
