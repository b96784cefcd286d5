"""The emulated network of a topology: Mininet nodes, wired, addressed and routed.

Per island a router, an edge (a bridge, in line between router and hosts) and a host; a transit is a router alone. The
nodes are Mininet's, so its API and command line work on them; interfaces, addresses and routes are set through netlink,
since a shell command for each of some hundred settings would take seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import networkx as nx
from mininet.link import Intf
from mininet.link import Link as MininetLink
from mininet.net import Mininet
from mininet.node import Node
from pyroute2 import IPRoute

from scheduler.topology import CoreLink, Topology
from testbed.links.interface import MTU_BYTES, Direction, Link, LinkEnd, LinkKind, RunningLinks, default_queue_bytes
from testbed.network import naming
from testbed.network.namespaces import entered, netlink, write_sysctls
from testbed.scale import Scale

# Per-namespace settings only: nothing outside the emulated network changes.
_ALL_NODES = {
    "ipv6.conf.all.disable_ipv6": "1",
    "ipv6.conf.default.disable_ipv6": "1",
    "ipv4.conf.all.rp_filter": "0",
    "ipv4.conf.default.rp_filter": "0",
}
_ROUTER = {"ipv4.ip_forward": "1"}
_EDGE = {"ipv4.igmp_max_memberships": "4096", "ipv4.igmp_max_msf": "4096"}


@dataclass(frozen=True)
class EmulatedNetwork:
    """A network in operation. `pids` maps each node to a process in its namespace."""

    topology: Topology
    mininet: Mininet
    pids: Mapping[str, int]
    links: RunningLinks

    def close(self) -> None:
        """End the links and all nodes. Safe to call twice."""
        self.links.close()
        _terminate(self.mininet)


def emulated_links(topology: Topology, scale: Scale, seed: int) -> tuple[Link, ...]:
    """The links to build: every core link, and each island's access link between edge and host."""
    directions = {(link.source, link.target): link for link in topology.links}
    links = []
    for pair in naming.core_pairs(topology):
        forward, backward = directions[pair.a, pair.b], directions[pair.b, pair.a]
        links.append(
            Link(
                pair.name,
                LinkEnd(pair.a, naming.core_interface(pair.b)),
                LinkEnd(pair.b, naming.core_interface(pair.a)),
                _direction(forward, scale, seed + 2 * pair.index),
                _direction(backward, scale, seed + 2 * pair.index + 1),
            )
        )
    for island in topology.islands:
        own_seed = seed + 2 * len(links)
        delay_ns = scale.emulated_ns(island.access_one_way_delay_ms)
        up, down = scale.rate_bps(island.access_up_gbps), scale.rate_bps(island.access_down_gbps)
        edge, host = naming.edge_name(island.id), naming.host_name(island.id)
        links.append(
            Link(
                f"{edge}-{host}",
                LinkEnd(edge, naming.EDGE_TO_HOST),
                LinkEnd(host, naming.HOST_TO_EDGE),
                Direction(delay_ns, down, default_queue_bytes(down), seed=own_seed),
                Direction(delay_ns, up, default_queue_bytes(up), seed=own_seed + 1),
            )
        )
    return tuple(links)


def _direction(link: CoreLink, scale: Scale, seed: int) -> Direction:
    rate_bps = scale.rate_bps(link.rate_gbps)
    queue = default_queue_bytes(rate_bps) if link.queue_mb is None else scale.size_bytes(link.queue_mb / 1e3)
    return Direction(
        one_way_delay_ns=scale.emulated_ns(link.one_way_delay_ms),
        rate_bps=rate_bps,
        queue_bytes=queue,
        loss=link.loss,
        seed=seed,
        jitter_ns=scale.emulated_ns(link.jitter_ms),
    )


def build_network(topology: Topology, links: tuple[Link, ...], kind: LinkKind, run_id: str) -> EmulatedNetwork:
    """Build and start the network of `topology` with `links` emulated by `kind`.

    Raises LinkError or OSError, with nothing left behind.
    """
    # Mininet's own initialisation rewrites limits and sysctls of the whole machine, which an emulation must not do.
    Mininet.inited = True
    mininet = Mininet(controller=None, switch=None, build=False)
    try:
        pids = _add_nodes(mininet, topology)
        for pid in pids.values():
            with entered(pid):
                write_sysctls(_ALL_NODES)
        _wire_edges(topology, pids)
        running = kind.build(links, pids, run_id)
    except BaseException:
        _terminate(mininet)
        raise
    network = EmulatedNetwork(topology, mininet, pids, running)
    try:
        _configure_islands(topology, pids)
        _configure_routers(topology, pids)
        _introduce_neighbours(topology, pids)
        _register_interfaces(mininet, topology, links)
    except BaseException:
        network.close()
        raise
    return network


def _terminate(mininet: Mininet) -> None:
    for node in mininet.hosts:
        node.terminate()
    mininet.hosts.clear()


def _add_nodes(mininet: Mininet, topology: Topology) -> dict[str, int]:
    names = [*topology.transits]
    for island in topology.islands:
        names += [island.id, naming.edge_name(island.id), naming.host_name(island.id)]
    return {name: mininet.addHost(name, cls=Node).pid for name in names}


def _wire_edges(topology: Topology, pids: Mapping[str, int]) -> None:
    """Join each router to its edge, with a plain veth pair: the two are one site."""
    with IPRoute() as here:
        for island in topology.islands:
            here.link(
                "add",
                ifname=naming.ROUTER_TO_EDGE,
                kind="veth",
                mtu=MTU_BYTES,
                net_ns_pid=pids[island.id],
                peer={
                    "ifname": naming.EDGE_TO_ROUTER,
                    "mtu": MTU_BYTES,
                    "net_ns_pid": pids[naming.edge_name(island.id)],
                },
            )


def _configure_islands(topology: Topology, pids: Mapping[str, int]) -> None:
    for island_id, island in enumerate(topology.islands):
        edge = pids[naming.edge_name(island.id)]
        with netlink(edge) as ipr:
            ipr.link(
                "add",
                ifname=naming.EDGE_BRIDGE,
                kind="bridge",
                br_mcast_snooping=0,  # without a querier, snooping would cut receivers off after minutes
                br_stp_state=0,
                br_forward_delay=0,
            )
            bridge = _index(ipr, naming.EDGE_BRIDGE)
            for port in (naming.EDGE_TO_ROUTER, naming.EDGE_TO_HOST):
                ipr.link("set", index=_index(ipr, port), master=bridge, state="up")
            # Streams end at the aggregator; without this each would go on to the hosts' access link as well.
            ipr.brport("set", index=_index(ipr, naming.EDGE_TO_HOST), mcast_flood=0)
            ipr.link("set", index=bridge, mtu=MTU_BYTES, state="up")
            ipr.addr("add", index=bridge, address=naming.edge_address(island_id), prefixlen=naming.ISLAND_PREFIX)
            ipr.route("add", dst="default", gateway=naming.router_address(island_id))
        with entered(edge):
            write_sysctls(_EDGE)
        with netlink(pids[naming.host_name(island.id)]) as ipr:
            index = _index(ipr, naming.HOST_TO_EDGE)
            ipr.addr("add", index=index, address=naming.host_address(island_id), prefixlen=naming.ISLAND_PREFIX)
            ipr.link("set", index=index, state="up")
            ipr.route("add", dst="default", gateway=naming.router_address(island_id))
        with netlink(pids[island.id]) as ipr:
            index = _index(ipr, naming.ROUTER_TO_EDGE)
            ipr.link("set", index=index, state="up")
            ipr.addr("add", index=index, address=naming.router_address(island_id), prefixlen=naming.ISLAND_PREFIX)


def _configure_routers(topology: Topology, pids: Mapping[str, int]) -> None:
    pairs = naming.core_pairs(topology)
    gateways = {}
    for pair in pairs:
        for here, there in ((pair.a, pair.b), (pair.b, pair.a)):
            gateways[here, there] = pair.address(there)
            with netlink(pids[here]) as ipr:
                index = _index(ipr, naming.core_interface(there))
                ipr.addr("add", index=index, address=pair.address(here), prefixlen=naming.CORE_PREFIX)
                ipr.link("set", index=index, state="up")
    graph = nx.DiGraph()
    graph.add_weighted_edges_from((link.source, link.target, link.one_way_delay_ms) for link in topology.links)
    for router in (*(island.id for island in topology.islands), *topology.transits):
        paths = nx.single_source_dijkstra_path(graph, router) if router in graph else {}
        with entered(pids[router]):
            write_sysctls(_ROUTER)
        with netlink(pids[router]) as ipr:
            for island_id, island in enumerate(topology.islands):
                path = paths.get(island.id, [router])
                if len(path) > 1:
                    ipr.route("add", dst=naming.island_subnet(island_id), gateway=gateways[router, path[1]])


def _introduce_neighbours(topology: Topology, pids: Mapping[str, int]) -> None:
    """Tell every node its neighbours' link addresses.

    While an address is looked up the kernel holds back only some 200 kB, so a first burst of results would lose frames.
    """
    subnets = [  # each a list of (node, interface, address)
        [
            (here, naming.core_interface(there), pair.address(here))
            for here, there in ((pair.a, pair.b), (pair.b, pair.a))
        ]
        for pair in naming.core_pairs(topology)
    ]
    for island_id, island in enumerate(topology.islands):
        subnets.append(
            [
                (island.id, naming.ROUTER_TO_EDGE, naming.router_address(island_id)),
                (naming.edge_name(island.id), naming.EDGE_BRIDGE, naming.edge_address(island_id)),
                (naming.host_name(island.id), naming.HOST_TO_EDGE, naming.host_address(island_id)),
            ]
        )
    link_addresses = {}
    for node, pid in pids.items():
        with netlink(pid) as ipr:
            for message in ipr.get_links():
                link_addresses[node, message.get("ifname")] = message.get("address")
    for node, pid in pids.items():
        with netlink(pid) as ipr:
            for subnet in subnets:
                own = next((interface for here, interface, _ in subnet if here == node), None)
                for there, interface, address in subnet:
                    if own and there != node:
                        ipr.neigh(
                            "replace",
                            dst=address,
                            lladdr=link_addresses[there, interface],
                            ifindex=_index(ipr, own),
                            state="permanent",
                        )


def _register_interfaces(mininet: Mininet, topology: Topology, links: tuple[Link, ...]) -> None:
    """Tell Mininet about the interfaces, so that its API and command line know the network."""
    ends = [(link.a, link.b) for link in links]
    ends += [
        (LinkEnd(island.id, naming.ROUTER_TO_EDGE), LinkEnd(naming.edge_name(island.id), naming.EDGE_TO_ROUTER))
        for island in topology.islands
    ]
    for end_a, end_b in ends:
        link = _ExistingLink.__new__(_ExistingLink)
        link.intf1, link.intf2 = (
            _ExistingInterface(end.interface, mininet.nameToNode[end.node], link=link, moveIntfFn=MininetLink._ignore)
            for end in (end_a, end_b)
        )
        mininet.links.append(link)


class _ExistingLink(MininetLink):  # type: ignore[misc]
    """A link that is there already: Mininet shows it and neither makes nor removes it."""

    def stop(self) -> None:
        pass


class _ExistingInterface(Intf):  # type: ignore[misc]
    def config(self, **_params: object) -> dict[str, object]:
        return {}


def _index(ipr: IPRoute, interface: str) -> int:
    found = ipr.link_lookup(ifname=interface)
    if not found:
        raise OSError(f"interface {interface} is missing")
    return int(found[0])
