"""What a multicast plane is. Read this first; each plane has a module of its own beside this one."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from scheduler.topology import Topology
from testbed.multicast.groups import Tree


class MulticastError(Exception):
    """A plane cannot carry the trees; the message is one line and names the way out."""


class RunningPlane(Protocol):
    """A plane in operation on a network."""

    def install(self, trees: Iterable[Tree]) -> None:
        """Have the routers forward `trees`; on return every entry is in the kernel's forwarding caches.

        Raises MulticastError.
        """
        ...

    def close(self) -> None:
        """Forget all trees. Safe to call twice."""
        ...


class MulticastPlane(Protocol):
    """A way to install multicast trees."""

    name: str

    def refusal(self, topology: Topology, trees: Iterable[Tree]) -> str | None:
        """Why this machine, or this plane, cannot carry `trees`: one line with the way out; None if it can.

        Changes nothing: it is asked before anything is built.
        """
        ...

    def start(self, topology: Topology, pids: Mapping[str, int]) -> RunningPlane:
        """Start the plane on the routers of a network; `pids` maps nodes to processes in their namespaces.

        Raises MulticastError.
        """
        ...
