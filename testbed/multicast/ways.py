"""How the routers of the plane `pim` know their ways back to the sources.

A source-specific tree grows against the unicast routes to its source. Read the interface first; the kind of this module
has the testbed set the routes, that of testbed/multicast/ospf.py has the routers find them.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from testbed.multicast.groups import Tree
from testbed.multicast.host_routes import HostRoutes
from testbed.multicast.interface import MulticastError, Site


class Ways(Protocol):
    """The ways back to all sources, in operation. Not thread-safe."""

    def start(self) -> float | None:
        """Wait until the routers know what they find by themselves; returns how many ms it took, None for nothing.

        Raises MulticastError.
        """
        ...

    def follow(self, trees: Collection[Tree]) -> None:
        """Have the ways follow `trees`; other ways stay. Raises MulticastError."""
        ...

    def move(self, trees: Collection[Tree]) -> None:
        """A link has changed: have the ways follow `trees`, and no others be. Raises MulticastError."""
        ...

    def keep_only(self, trees: Collection[Tree]) -> None:
        """Drop the ways that none of `trees` takes. Raises MulticastError."""
        ...

    def are_those_of(self, trees: Collection[Tree]) -> bool:
        """Whether the ways are those of `trees`. Raises OSError."""
        ...

    def close(self) -> None:
        """Safe to call twice."""
        ...


class PrescribedWays:
    """Routes to single addresses, set by the testbed: each router's way back to an address is that of its trees."""

    def __init__(self, site: Site) -> None:
        self._routes = HostRoutes(site.topology, site.pids)

    def start(self) -> float | None:
        return None

    def follow(self, trees: Collection[Tree]) -> None:
        try:
            self._routes.set(ways_back(trees))
        except OSError as error:
            raise MulticastError(error.strerror) from error

    def move(self, trees: Collection[Tree]) -> None:
        self.follow(trees)
        self.keep_only(trees)

    def keep_only(self, trees: Collection[Tree]) -> None:
        wanted = ways_back(trees)
        try:
            self._routes.remove([key for key in self._routes.known() if key not in wanted])
        except OSError as error:
            raise MulticastError(error.strerror) from error

    def are_those_of(self, trees: Collection[Tree]) -> bool:
        return True

    def close(self) -> None:
        self._routes.close()


def ways_back(trees: Iterable[Tree]) -> Mapping[tuple[str, str], str]:
    """The neighbour that lies towards each source address, by (router, source address)."""
    return {(child, tree.address): parent for tree in trees for parent, child in tree.links}
