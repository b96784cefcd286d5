"""The plane `pim`: routers speak PIM-SSM among themselves and take IGMPv3 joins from their edges, with FRR.

A source-specific tree grows from its receivers towards the source, against the unicast route to the source's address.
So for each source address the routers get a kernel route that goes back along its planned tree, and the trees that grow
are the planned ones; every entry is then compared. One address has one way back per router: trees of one source that
disagree need a second address (testbed/multicast/groups.py gives them one).
"""

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from scheduler.topology import Topology
from testbed.multicast.forwarding_cache import interface, wait_for_entries
from testbed.multicast.frr import Router, missing_package, router_configuration
from testbed.multicast.groups import Tree, parents
from testbed.multicast.host_routes import HostRoutes
from testbed.multicast.interface import MulticastError, Site
from testbed.multicast.limits import MAX_INTERFACES, too_many_interfaces
from testbed.network import naming

START_TIMEOUT_S = 60.0
_POLL_S = 0.01
_CONFIGURATIONS = "frr"  # in the run directory


class PimPlane:
    """See the module."""

    name = "pim"
    copies = False

    def refusal(self, topology: Topology, trees: Sequence[Tree]) -> str | None:
        # pimd takes one of the kernel's interfaces for PIM's own use.
        return missing_package() or too_many_interfaces(topology, MAX_INTERFACES - 1) or two_ways_back(trees)

    def start(self, site: Site) -> "RunningPimPlane":
        running = RunningPimPlane(site)
        try:
            running.start()
        except BaseException:
            running.close()
            raise
        return running


def two_ways_back(trees: Sequence[Tree]) -> str | None:
    """Which source address has trees that reach a router from two sides; None if none has."""
    for address in sorted({tree.address for tree in trees}):
        of_address = [tree for tree in trees if tree.address == address]
        for router, ways in parents(of_address).items():
            if len(ways) > 1:
                source, sides = of_address[0].source, " and ".join(sorted(ways))
                return (
                    f"two trees of island {source} reach router {router} from {sides}, "
                    f"but a router has one way back to a source address, and a host no more than "
                    f"{naming.MAX_HOST_ADDRESSES} addresses; use --multicast direct"
                )
    return None


class RunningPimPlane:
    """The routers' daemons, and the routes that their trees follow."""

    def __init__(self, site: Site) -> None:
        """Raises OSError."""
        self.timings_ms: dict[str, float] = {}
        self._pids = site.pids
        self._neighbours: dict[str, list[str]] = {name: [] for name in site.topology.nodes}
        for link in site.topology.links:
            self._neighbours[link.source].append(link.target)
        with_island = set(site.topology.island_ids)
        self._routers = [
            Router(
                name,
                site.pids[name],
                router_configuration(
                    name, [interface(there) for there in there_all], interface(None) if name in with_island else None
                ),
                site.directory / _CONFIGURATIONS / name,
                site.run_id,
            )
            for name, there_all in self._neighbours.items()
        ]
        self._routes = HostRoutes(site.topology, site.pids)
        self._live: set[Tree] = set()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start all daemons and wait until all neighbours know each other. Raises MulticastError."""
        began = time.monotonic()
        try:
            for router in self._routers:
                router.start_zebra()
            self._wait_each(lambda router: router.is_up("zebra"), "zebra did not start", Router.start_pimd)
            self._wait_each(lambda router: router.is_up("pimd"), "pimd did not start")
            daemons_up = time.monotonic()
            self._wait_each(self._knows_its_neighbours, "pimd does not see all neighbours")
        except OSError as error:
            raise MulticastError(f"FRR could not be started: {error.strerror or error}") from error
        self.timings_ms["daemons"] = (daemons_up - began) * 1e3
        self.timings_ms["neighbours"] = (time.monotonic() - daemons_up) * 1e3

    def _wait_each(
        self, is_done: Callable[[Router], bool], trouble: str, then: Callable[[Router], None] | None = None
    ) -> None:
        """Wait until `is_done` for every router; do `then` with each as soon as it is."""
        waiting = list(self._routers)
        deadline = time.monotonic() + START_TIMEOUT_S
        while waiting:
            for router in list(waiting):
                if is_done(router):
                    waiting.remove(router)
                    if then is not None:
                        then(router)
            if waiting and time.monotonic() > deadline:
                raise MulticastError(f"router {waiting[0].name}: {trouble} within {START_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)

    def _knows_its_neighbours(self, router: Router) -> bool:
        # Never ask for `show ip pim interface detail json`: it kills pimd 8.4.
        known = json.loads(router.ask("pimd", "show ip pim neighbor json"))
        return all(known.get(interface(there)) for there in self._neighbours[router.name])

    def install(self, trees: Collection[Tree]) -> None:
        with self._lock:
            self._set_routes([*self._live, *trees])
            self._live.update(trees)

    def confirm(self, trees: Collection[Tree], timeout_s: float) -> None:
        wait_for_entries(self._pids, trees, timeout_s)

    def move(self, trees: Mapping[Tree, Tree]) -> None:
        with self._lock:
            self._live = {trees.get(tree, tree) for tree in self._live}
            self._set_routes(self._live)
            self._drop_routes()

    def remove(self, trees: Collection[Tree]) -> None:
        # The receivers have left, so the routers forget the trees by themselves. Their routes stay until the next time:
        # a way back that changes while a tree is being pruned can leave parts of the tree behind.
        with self._lock:
            self._drop_routes()
            self._live.difference_update(trees)

    def check(self) -> None:
        for router in self._routers:
            ended = router.ended()
            if ended is not None:
                raise MulticastError(f"{ended}; with it go the trees through that router")

    def close(self) -> None:
        with self._lock:
            for router in self._routers:
                router.stop()
            self._routes.close()

    def _set_routes(self, trees: Iterable[Tree]) -> None:
        """Have each router's way back to each source address follow the trees of that address."""
        try:
            self._routes.set(ways_back(trees))
        except OSError as error:
            raise MulticastError(error.strerror) from error

    def _drop_routes(self) -> None:
        wanted = ways_back(self._live)
        try:
            self._routes.remove([key for key in self._routes.known() if key not in wanted])
        except OSError as error:
            raise MulticastError(error.strerror) from error


def ways_back(trees: Iterable[Tree]) -> dict[tuple[str, str], str]:
    """The neighbour that lies towards each source address, by (router, source address)."""
    return {(child, tree.address): parent for tree in trees for parent, child in tree.links}
