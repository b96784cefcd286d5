"""The plane `unicast`: no multicast at all. The sender sends a copy to each receiver's edge, for comparison.

The copies go the ways of the planned trees: each router gets a route to each edge's address. Kernel routes go by
destination, so two trees must not reach one edge from one router over different links.
"""

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence

from scheduler.topology import Topology
from scheduler.trees import Tree as Paths
from testbed.multicast.groups import Tree
from testbed.multicast.host_routes import HostRoutes
from testbed.multicast.interface import MulticastError, Site
from testbed.network import naming


class UnicastPlane:
    """See the module."""

    name = "unicast"
    copies = True
    finds_ways = False

    def refusal(self, topology: Topology, trees: Sequence[Tree]) -> str | None:
        chosen: dict[tuple[str, str], str] = {}
        for router, receiver, neighbour in _hops(trees):
            if chosen.setdefault((router, receiver), neighbour) != neighbour:
                return (
                    f"from router {router}, trees reach {receiver} over {chosen[router, receiver]} and {neighbour}, "
                    "but unicast has one way to an address; use --trees shortest, or --multicast direct"
                )
        return None

    def start(self, site: Site) -> "RunningUnicastPlane":
        return RunningUnicastPlane(site)


class RunningUnicastPlane:
    """The routes that the copies follow."""

    def __init__(self, site: Site) -> None:
        self.timings_ms: dict[str, float] = {}
        self._edges = {name: naming.edge_address(number) for number, name in enumerate(site.topology.island_ids)}
        self._routes = HostRoutes(site.topology, site.pids)
        self._live: set[Tree] = set()
        self._lock = threading.Lock()

    def install(self, trees: Collection[Tree]) -> None:
        with self._lock:
            self._live.update(trees)
            self._follow()

    def confirm(self, trees: Collection[Tree], timeout_s: float) -> None:
        """Nothing to wait for: routes are in force once they are set."""

    def move(self, trees: Mapping[Tree, Tree]) -> None:
        with self._lock:
            self._live = {trees.get(tree, tree) for tree in self._live}
            self._follow()

    def remove(self, trees: Collection[Tree]) -> None:
        with self._lock:
            self._live.difference_update(trees)
            self._follow()

    def check(self) -> None:
        """Nothing of it can end by itself: the kernel forwards."""

    def are_followed(self, trees: Collection[Tree]) -> bool:
        return True

    def routing_bytes(self) -> Mapping[tuple[str, str], int]:
        return {}

    def close(self) -> None:
        self._routes.close()

    def _follow(self) -> None:
        """Have exactly the routes of the live trees."""
        wanted = {(router, self._edges[receiver]): neighbour for router, receiver, neighbour in _hops(self._live)}
        try:
            self._routes.set(wanted)
            self._routes.remove([key for key in self._routes.known() if key not in wanted])
        except OSError as error:
            raise MulticastError(error.strerror) from error


def _hops(trees: Iterable[Tree]) -> Iterable[tuple[str, str, str]]:
    """(router, receiver, next router) of all ways of all trees."""
    for tree in trees:
        paths = Paths(tree.source, tree.receivers, tree.links)
        for receiver in tree.receivers:
            for here, there in paths.path(receiver):
                yield here, receiver, there
