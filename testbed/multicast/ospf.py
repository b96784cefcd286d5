"""OSPF instead of routes that the testbed sets (`run --igp`): for studies of convergence.

FRR's ospfd runs on every router and finds the ways by itself: at the start, when a link fails and when it is back; with
bfdd beside it, also when a link swallows everything and stays up. The cost of an interface is the delay of what arrives
there, since trees grow against the routes: the trees that come out are those of shortest delay, and no others can run.
"""

import socket
import struct
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

import networkx as nx

from scheduler.topology import Topology
from testbed.multicast.forwarding_cache import interface
from testbed.multicast.frr import preamble
from testbed.multicast.groups import Tree
from testbed.multicast.interface import MulticastError, Site
from testbed.network import naming

COST_MS = 0.01
MAX_COST = 65535
HELLO_S = 1
DEAD_S = 3
BFD_INTERVAL_MS = 50
BFD_MISSED = 3
_MAX_BFD_INTERVAL_MS = 60000
_BFD_PROFILE = "wan"
_SPF_WAIT_MS, _MOST_SPF_WAIT_MS = 50, 500
_TIMEOUT_S = 30.0
_POLL_S = 0.005


@dataclass(frozen=True)
class Ospf:
    """What the routers run. FRR's own times are dilated like all others."""

    bfd: bool
    time_dilation: float = 1.0

    @property
    def daemons(self) -> tuple[str, ...]:
        return ("bfdd", "ospfd") if self.bfd else ("ospfd",)

    def refusal(self, topology: Topology, trees: Collection[Tree]) -> str | None:
        """Which tree is not the one that OSPF's ways give, or may not be; None if all are."""
        for link in topology.links:
            if _cost(link.one_way_delay_ms) > MAX_COST:
                return (
                    f"link {link.source}>{link.target}: OSPF's costs end at {MAX_COST * COST_MS:g} ms one way; "
                    "use --igp none"
                )
        graph = _costs(topology)
        for source in {tree.source for tree in trees}:
            nearest, _ = nx.dijkstra_predecessor_and_distance(graph, source)
            for parent, child in (link for tree in trees if tree.source == source for link in tree.links):
                if parent not in nearest[child]:
                    return (
                        f"a tree of island {source} reaches router {child} from {parent}, but OSPF's shortest way back "
                        f"is over {nearest[child][0]}; use --trees shortest, or --igp none"
                    )
                if len(nearest[child]) > 1:
                    return (
                        f"router {child} has equally short ways back to island {source}, over "
                        f"{' and '.join(sorted(nearest[child]))}, and OSPF may take any; have their delays differ by "
                        f"{COST_MS:g} ms, or use --igp none"
                    )
        return None

    def configurations(self, topology: Topology, router: str) -> dict[str, str]:
        """The configuration of each of a router's daemons."""
        configurations = {"ospfd": self._ospf_configuration(topology, router)}
        if self.bfd:
            interval_ms = min(round(BFD_INTERVAL_MS * self.time_dilation), _MAX_BFD_INTERVAL_MS)
            configurations["bfdd"] = preamble(router) + "\n".join(
                [
                    "bfd",
                    f" profile {_BFD_PROFILE}",
                    f"  detect-multiplier {BFD_MISSED}",
                    f"  receive-interval {interval_ms}",
                    f"  transmit-interval {interval_ms}",
                    " exit",
                    "exit",
                    "",
                ]
            )
        return configurations

    def _ospf_configuration(self, topology: Topology, router: str) -> str:
        times = max(round(self.time_dilation), 1)
        lines = []
        for arriving in (link for link in topology.links if link.target == router):
            lines += [
                f"interface {interface(arriving.source)}",
                " ip ospf area 0",
                " ip ospf network point-to-point",
                f" ip ospf cost {_cost(arriving.one_way_delay_ms)}",
                f" ip ospf hello-interval {HELLO_S * times}",
                f" ip ospf dead-interval {DEAD_S * times}",
            ]
            if self.bfd:
                # The second line alone would not switch it on.
                lines += [" ip ospf bfd", f" ip ospf bfd profile {_BFD_PROFILE}"]
            lines.append("exit")
        if router in topology.island_ids:
            lines += [f"interface {interface(None)}", " ip ospf area 0", " ip ospf passive", "exit"]
        lines += [
            "router ospf",
            f" ospf router-id {IPv4Address(topology.nodes.index(router) + 1)}",
            " log-adjacency-changes",
            " maximum-paths 1",
            f" timers throttle spf 0 {_SPF_WAIT_MS * times} {_MOST_SPF_WAIT_MS * times}",
            # With the defaults the start takes 12 s, and a failure is felt by those who have nothing to do with it.
            " timers throttle lsa all 0",
            " timers lsa min-arrival 0",
            "exit",
        ]
        return preamble(router) + "\n".join(lines) + "\n"

    def ways(self, site: Site) -> "OspfWays":
        """The ways that the routers find, once the daemons run."""
        return OspfWays(site, _TIMEOUT_S * self.time_dilation)


class OspfWays:
    """What OSPF has found, read from the kernel's routing tables."""

    def __init__(self, site: Site, timeout_s: float) -> None:
        self._topology = site.topology
        self._pids = site.pids
        self._timeout_s = timeout_s
        self._costs = _costs(site.topology)

    def start(self) -> float | None:
        """Wait until every router knows the shortest way to every island; returns how many ms it took."""
        began = time.monotonic()
        wanted: dict[tuple[str, str], int] = {}
        for source in self._topology.island_ids:
            distances = nx.single_source_dijkstra_path_length(self._costs, source)
            wanted |= {(router, source): cost for router, cost in distances.items()}
        self._wait_for(wanted)
        return (time.monotonic() - began) * 1e3

    def follow(self, trees: Collection[Tree]) -> None:
        """Nothing to do: the ways are there before the trees."""

    def move(self, trees: Collection[Tree]) -> None:
        """Nothing to do: the routers find other ways."""

    def keep_only(self, trees: Collection[Tree]) -> None:
        """Nothing to do: the ways stay when trees go."""

    def are_those_of(self, trees: Collection[Tree]) -> bool:
        return self._differing(self._tree_costs(trees)) is None

    def close(self) -> None:
        """Nothing to do: the daemons end with their routers."""

    def _tree_costs(self, trees: Collection[Tree]) -> dict[tuple[str, str], int]:
        """What the way back along the trees costs, by (router, source)."""
        costs = {}
        for tree in trees:
            costs[tree.source, tree.source] = 0
            for parent, child in tree.links:
                costs[child, tree.source] = costs[parent, tree.source] + self._costs[parent][child]["weight"]
        return costs

    def _wait_for(self, wanted: Mapping[tuple[str, str], int]) -> None:
        deadline = time.monotonic() + self._timeout_s
        while (differing := self._differing(wanted)) is not None:
            if time.monotonic() > deadline:
                router, source = differing
                raise MulticastError(
                    f"OSPF did not find the shortest way from router {router} to island {source} within "
                    f"{self._timeout_s:.0f} s; see frr/{router}/ of the run directory"
                )
            time.sleep(_POLL_S)

    def _differing(self, wanted: Mapping[tuple[str, str], int]) -> tuple[str, str] | None:
        """The first (router, source) whose way back does not cost what it should; None if all do."""
        tables = {router: read_routes(self._pids[router], self._topology) for router in self._topology.nodes}
        return next((ends for ends, cost in wanted.items() if self._cost_back(tables, *ends) != cost), None)

    def _cost_back(self, tables: Mapping[str, Mapping[str, str]], router: str, source: str) -> int | None:
        """What the way costs on which routers send what is for `source`; None if it does not get there."""
        cost = 0
        for _ in self._topology.nodes:
            if router == source:
                return cost
            following = tables[router].get(source)
            if following is None:
                return None
            cost += self._costs[following][router]["weight"]
            router = following
        return None


def read_routes(pid: int, topology: Topology) -> dict[str, str]:
    """The neighbour to which the router whose namespace `pid` lives in sends what is for each other island."""
    islands = {naming.island_subnet(number).split("/")[0]: name for number, name in enumerate(topology.island_ids)}
    neighbours = {interface(name): name for name in topology.nodes}
    routes = {}
    for line in Path(f"/proc/{pid}/net/route").read_text(encoding="ascii").splitlines()[1:]:
        # Interface, destination, gateway, …; addresses are in network order as numbers of the machine's.
        way_out, destination, *_ = line.split()
        island = islands.get(socket.inet_ntoa(struct.pack("=I", int(destination, 16))))
        if island is not None and way_out in neighbours:
            routes[island] = neighbours[way_out]
    return routes


def _cost(one_way_delay_ms: float) -> int:
    return max(round(one_way_delay_ms / COST_MS), 1)


def _costs(topology: Topology) -> nx.DiGraph:
    """The costs as OSPF has them, on links in the direction of the data."""
    graph = nx.DiGraph()
    graph.add_nodes_from(topology.nodes)
    graph.add_weighted_edges_from((link.source, link.target, _cost(link.one_way_delay_ms)) for link in topology.links)
    return graph
