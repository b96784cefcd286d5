"""The plane `pim`: routers speak PIM-SSM among themselves and take IGMPv3 joins from their edges, with FRR.

A source-specific tree grows from its receivers towards the source, against the unicast route to the source's address.
So for each source address the routers get a kernel route that goes back along its planned tree, and the trees that grow
are the planned ones; every entry is then compared. One address has one way back per router: trees of one source that
disagree need a second address (testbed/multicast/groups.py gives them one). With OSPF the routers find the routes, and
only the trees of shortest delay can run.
"""

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from scheduler.topology import Topology
from testbed.multicast.forwarding_cache import interface, wait_for_entries
from testbed.multicast.frr import Router, missing_package, pim_configuration, zebra_configuration
from testbed.multicast.groups import Tree, parents
from testbed.multicast.interface import MulticastError, Site
from testbed.multicast.limits import MAX_INTERFACES, too_many_interfaces
from testbed.multicast.ospf import Ospf
from testbed.multicast.routing_traffic import RoutingTraffic
from testbed.multicast.ways import PrescribedWays, Ways
from testbed.network import naming

START_TIMEOUT_S = 60.0
_POLL_S = 0.01
_CONFIGURATIONS = "frr"  # in the run directory


class PimPlane:
    """See the module. With `ospf` the routers find the ways, otherwise the testbed prescribes them."""

    name = "pim"
    copies = False

    def __init__(self, ospf: Ospf | None = None) -> None:
        self._ospf = ospf
        self.finds_ways = ospf is not None

    def refusal(self, topology: Topology, trees: Sequence[Tree]) -> str | None:
        # pimd takes one of the kernel's interfaces for PIM's own use.
        missing = missing_package(self._ospf.daemons if self._ospf else ())
        refused = missing or too_many_interfaces(topology, MAX_INTERFACES - 1)
        return refused or (self._ospf.refusal(topology, trees) if self._ospf else two_ways_back(trees))

    def start(self, site: Site) -> "RunningPimPlane":
        running = RunningPimPlane(site, self._ospf)
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
    """The routers' daemons, and the ways that their trees follow."""

    def __init__(self, site: Site, ospf: Ospf | None) -> None:
        """Raises OSError."""
        self.timings_ms: dict[str, float] = {}
        self._pids = site.pids
        self._neighbours: dict[str, list[str]] = {name: [] for name in site.topology.nodes}
        for link in site.topology.links:
            self._neighbours[link.source].append(link.target)
        self._routers = [self._router(site, name, ospf) for name in self._neighbours]
        self._ways: Ways = ospf.ways(site) if ospf else PrescribedWays(site)
        self._traffic = RoutingTraffic(site.topology, site.pids)
        self._live: set[Tree] = set()
        self._lock = threading.Lock()

    def _router(self, site: Site, name: str, ospf: Ospf | None) -> Router:
        core = [interface(there) for there in self._neighbours[name]]
        island = interface(None) if name in site.topology.island_ids else None
        configurations = {"zebra": zebra_configuration(name), "pimd": pim_configuration(name, core, island)}
        if ospf:
            configurations |= ospf.configurations(site.topology, name)
        return Router(name, site.pids[name], configurations, site.directory / _CONFIGURATIONS / name, site.run_id)

    def start(self) -> None:
        """Start all daemons, and wait until all neighbours know each other and all ways. Raises MulticastError."""
        began = time.monotonic()
        try:
            for router in self._routers:
                router.start_zebra()
            self._wait_each(lambda router: router.is_up("zebra"), "zebra did not start", Router.start_others)
            self._wait_each(lambda router: all(map(router.is_up, router.daemons)), "a daemon did not start")
            daemons_up = time.monotonic()
            self._wait_each(self._knows_its_neighbours, "pimd does not see all neighbours")
            self.timings_ms["daemons"] = (daemons_up - began) * 1e3
            self.timings_ms["neighbours"] = (time.monotonic() - daemons_up) * 1e3
            routes_ms = self._ways.start()
        except OSError as error:
            raise MulticastError(f"FRR could not be started: {error.strerror or error}") from error
        if routes_ms is not None:
            self.timings_ms["routes of OSPF"] = routes_ms

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
            self._ways.follow([*self._live, *trees])
            self._live.update(trees)

    def confirm(self, trees: Collection[Tree], timeout_s: float) -> None:
        wait_for_entries(self._pids, trees, timeout_s)

    def move(self, trees: Mapping[Tree, Tree]) -> None:
        with self._lock:
            self._live = {trees.get(tree, tree) for tree in self._live}
            self._ways.move(self._live)

    def remove(self, trees: Collection[Tree]) -> None:
        # The receivers have left, so the routers forget the trees by themselves. Their routes stay until the next time:
        # a way back that changes while a tree is being pruned can leave parts of the tree behind.
        with self._lock:
            self._ways.keep_only(self._live)
            self._live.difference_update(trees)

    def check(self) -> None:
        for router in self._routers:
            ended = router.ended()
            if ended is not None:
                raise MulticastError(f"{ended}; with it go the trees through that router")

    def are_followed(self, trees: Collection[Tree]) -> bool:
        return self._ways.are_those_of(trees)

    def routing_bytes(self) -> Mapping[tuple[str, str], int]:
        return self._traffic.read()

    def close(self) -> None:
        with self._lock:
            for router in self._routers:
                router.stop()
            self._ways.close()
            self._traffic.close()
