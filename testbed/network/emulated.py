"""The emulated network of a topology: Mininet nodes, wired, addressed and routed.

Per island a router, an edge (a bridge, in line between router and hosts) and a host; a transit is a router alone. With
more hosts than one there is a switch between edge and hosts, so that the access link is one link for all of them. The
nodes are Mininet's, so its API and command line work on them; interfaces, addresses and routes are set through netlink,
since a shell command for each of some hundred settings would take seconds.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
from pyroute2 import IPRoute

from scheduler.topology import CoreLink, Topology
from testbed.links.interface import MTU_BYTES, Direction, Link, LinkEnd, LinkKind, RunningLinks, default_queue_bytes
from testbed.links.veth import PairEnd, bring_up, make_pairs
from testbed.network import naming
from testbed.network.mininet_classes import Intf, Mininet, MininetLink, Node
from testbed.network.namespaces import entered, write_sysctls
from testbed.network.netlink import netlink
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
    hosts: int  # of each island
    routed: bool = True

    def add_host_addresses(self, addresses: Iterable[str]) -> None:
        """Give hosts these addresses, by which further trees know them; those that they have already are kept."""
        wanted = set(addresses)
        for island_id, island in enumerate(self.topology.islands):
            for host in range(1, self.hosts + 1):
                numbered = [naming.host_address(island_id, host, n) for n in range(1, naming.MAX_HOST_ADDRESSES)]
                further = [address for address in numbered if address in wanted]
                if not further:
                    continue
                with netlink(self.pids[naming.host_name(island.id, host)]) as ipr:
                    index = _index(ipr, naming.HOST_TO_EDGE)
                    for address in further:
                        ipr.addr("replace", index=index, address=address, prefixlen=naming.ISLAND_PREFIX)

    def reroute(self, down: Collection[frozenset[str]]) -> None:
        """Have the routers' unicast routes avoid core links, each named by its two routers. Raises OSError.

        Routers that find their ways are left alone.
        """
        if self.routed:
            _set_routes(self.topology, self.pids, down)

    def close(self) -> None:
        """End the links and all nodes. Safe to call twice."""
        self.links.close()
        _terminate(self.mininet)


def emulated_links(topology: Topology, scale: Scale, seed: int, hosts: int = 1) -> tuple[Link, ...]:
    """The links to build: every core link, and each island's access link between edge and hosts."""
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
        edge, inside = naming.edge_name(island.id), naming.access_node(island.id, hosts)
        links.append(
            Link(
                f"{edge}-{inside}",
                LinkEnd(edge, naming.EDGE_TO_HOST),
                LinkEnd(inside, naming.HOST_TO_EDGE if hosts == 1 else naming.LAN_TO_EDGE),
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


def build_network(
    topology: Topology, links: tuple[Link, ...], kind: LinkKind, run_id: str, hosts: int = 1, routed: bool = True
) -> EmulatedNetwork:
    """Build and start the network of `topology`, with `hosts` on each island and `links` emulated by `kind`.

    Unless it is `routed` its routers know no ways to other islands: they are to find them. Raises LinkError or OSError,
    with nothing left behind.
    """
    # Mininet's own initialisation rewrites limits and sysctls of the whole machine, which an emulation must not do.
    Mininet.inited = True
    mininet = Mininet(controller=None, switch=None, build=False)
    try:
        pids = {name: mininet.addHost(name, cls=Node).pid for name in naming.node_names(topology, hosts)}
        for pid in pids.values():
            with entered(pid):
                write_sysctls(_ALL_NODES)
        wires = site_wires(topology, hosts)
        _lay_wires(wires, pids)
        running = kind.build(links, pids, run_id)
    except BaseException:
        _terminate(mininet)
        raise
    network = EmulatedNetwork(topology, mininet, pids, running, hosts, routed)
    try:
        _configure_islands(topology, pids, hosts)
        _configure_routers(topology, pids)
        network.reroute(())
        addresses = _interface_addresses(topology, hosts)
        _introduce_neighbours(addresses, pids)
        _register_interfaces(mininet, [*((link.a, link.b) for link in links), *wires], addresses)
    except BaseException:
        network.close()
        raise
    return network


def _terminate(mininet: Mininet) -> None:
    for node in mininet.hosts:
        node.terminate()
    mininet.hosts.clear()


def site_wires(topology: Topology, hosts: int) -> list[tuple[LinkEnd, LinkEnd]]:
    """What is joined by a plain pair of interfaces, being one site: router and edge, the switch and its hosts."""
    wires = []
    for island in topology.islands:
        edge = naming.edge_name(island.id)
        wires.append((LinkEnd(island.id, naming.ROUTER_TO_EDGE), LinkEnd(edge, naming.EDGE_TO_ROUTER)))
        for host in range(1, hosts + 1 if hosts > 1 else 1):
            switch_end = LinkEnd(naming.lan_name(island.id), naming.lan_interface(host))
            wires.append((switch_end, LinkEnd(naming.host_name(island.id, host), naming.HOST_TO_EDGE)))
    return wires


def _lay_wires(wires: Sequence[tuple[LinkEnd, LinkEnd]], pids: Mapping[str, int]) -> None:
    make_pairs([(PairEnd(a.interface, pids[a.node]), PairEnd(b.interface, pids[b.node])) for a, b in wires])
    by_node: dict[str, list[str]] = {}
    for end in (end for wire in wires for end in wire):
        by_node.setdefault(end.node, []).append(end.interface)
    for node, interfaces in by_node.items():
        bring_up(pids[node], interfaces)


def _configure_islands(topology: Topology, pids: Mapping[str, int], hosts: int) -> None:
    for island_id, island in enumerate(topology.islands):
        edge = pids[naming.edge_name(island.id)]
        with netlink(edge) as ipr:
            # Streams end at the aggregator; if the access link's port were flooded each would go on there as well.
            bridge = _make_bridge(ipr, naming.EDGE_BRIDGE, [naming.EDGE_TO_ROUTER], [naming.EDGE_TO_HOST])
            ipr.addr("add", index=bridge, address=naming.edge_address(island_id), prefixlen=naming.ISLAND_PREFIX)
            ipr.route("add", dst="default", gateway=naming.router_address(island_id))
        with entered(edge):
            write_sysctls(_EDGE)
        if hosts > 1:
            with netlink(pids[naming.lan_name(island.id)]) as ipr:
                ports = [naming.lan_interface(host) for host in range(1, hosts + 1)]
                # What one host multicasts is for the WAN and not for its neighbours.
                _make_bridge(ipr, naming.LAN_BRIDGE, [naming.LAN_TO_EDGE], ports)
        for host in range(1, hosts + 1):
            with netlink(pids[naming.host_name(island.id, host)]) as ipr:
                index = _index(ipr, naming.HOST_TO_EDGE)
                address = naming.host_address(island_id, host)
                ipr.addr("add", index=index, address=address, prefixlen=naming.ISLAND_PREFIX)
                ipr.link("set", index=index, state="up")
                ipr.route("add", dst="default", gateway=naming.router_address(island_id))
        with netlink(pids[island.id]) as ipr:
            index = _index(ipr, naming.ROUTER_TO_EDGE)
            ipr.link("set", index=index, state="up")
            ipr.addr("add", index=index, address=naming.router_address(island_id), prefixlen=naming.ISLAND_PREFIX)


def _make_bridge(ipr: IPRoute, name: str, flooded: Sequence[str], not_flooded: Sequence[str]) -> int:
    """A bridge of these ports, up; multicast goes out of the flooded ones only. Returns its index."""
    ipr.link(
        "add",
        ifname=name,
        kind="bridge",
        br_mcast_snooping=0,  # without a querier, snooping would cut receivers off after minutes
        br_stp_state=0,
        br_forward_delay=0,
    )
    bridge = _index(ipr, name)
    for port in (*flooded, *not_flooded):
        ipr.link("set", index=_index(ipr, port), master=bridge, state="up")
    for port in not_flooded:
        ipr.brport("set", index=_index(ipr, port), mcast_flood=0)
    ipr.link("set", index=bridge, mtu=MTU_BYTES, state="up")
    return bridge


def _configure_routers(topology: Topology, pids: Mapping[str, int]) -> None:
    pairs = naming.core_pairs(topology)
    for pair in pairs:
        for here, there in pair.both_ways:
            with netlink(pids[here]) as ipr:
                index = _index(ipr, naming.core_interface(there))
                ipr.addr("add", index=index, address=pair.address(here), prefixlen=naming.CORE_PREFIX)
                ipr.link("set", index=index, state="up")
    for router in topology.nodes:
        with entered(pids[router]):
            write_sysctls(_ROUTER)


def _set_routes(topology: Topology, pids: Mapping[str, int], down: Collection[frozenset[str]] = ()) -> None:
    """Routes from each router to each island's subnet, over the shortest-delay ways that avoid `down`."""
    gateways = {
        (here, there): pair.address(there) for pair in naming.core_pairs(topology) for here, there in pair.both_ways
    }
    graph = nx.DiGraph()
    graph.add_nodes_from(topology.nodes)
    graph.add_weighted_edges_from(
        (link.source, link.target, link.one_way_delay_ms) for link in topology.links if frozenset(link.id) not in down
    )
    for router in topology.nodes:
        paths = nx.single_source_dijkstra_path(graph, router)
        with netlink(pids[router]) as ipr:
            for island_id, island in enumerate(topology.islands):
                path = paths.get(island.id, [router])
                if len(path) > 1:
                    gateway = gateways[router, path[1]]
                    ipr.route("replace", dst=naming.island_subnet(island_id), gateway=gateway)


def _interface_addresses(topology: Topology, hosts: int) -> list[list[tuple[LinkEnd, str]]]:
    """Who has which address, subnet by subnet."""
    subnets = [
        [(LinkEnd(here, naming.core_interface(there)), pair.address(here)) for here, there in pair.both_ways]
        for pair in naming.core_pairs(topology)
    ]
    for island_id, island in enumerate(topology.islands):
        subnets.append(
            [
                (LinkEnd(island.id, naming.ROUTER_TO_EDGE), naming.router_address(island_id)),
                (LinkEnd(naming.edge_name(island.id), naming.EDGE_BRIDGE), naming.edge_address(island_id)),
                *(
                    (
                        LinkEnd(naming.host_name(island.id, host), naming.HOST_TO_EDGE),
                        naming.host_address(island_id, host),
                    )
                    for host in range(1, hosts + 1)
                ),
            ]
        )
    return subnets


def _introduce_neighbours(subnets: list[list[tuple[LinkEnd, str]]], pids: Mapping[str, int]) -> None:
    """Tell every node its neighbours' link addresses.

    While an address is looked up the kernel holds back only some 200 kB, so a first burst of results would lose frames.
    """
    link_addresses = {}
    for node, pid in pids.items():
        with netlink(pid) as ipr:
            for message in ipr.get_links():
                link_addresses[node, message.get("ifname")] = message.get("address")
    for node, pid in pids.items():
        with netlink(pid) as ipr:
            for subnet in subnets:
                own = next((end.interface for end, _ in subnet if end.node == node), None)
                for end, address in subnet:
                    if own and end.node != node:
                        ipr.neigh(
                            "replace",
                            dst=address,
                            lladdr=link_addresses[end.node, end.interface],
                            ifindex=_index(ipr, own),
                            state="permanent",
                        )


def _register_interfaces(
    mininet: Mininet, pairs: Sequence[tuple[LinkEnd, LinkEnd]], subnets: list[list[tuple[LinkEnd, str]]]
) -> None:
    """Tell Mininet about interfaces and addresses, so that its API and command line know the network."""
    addresses = {end: address for subnet in subnets for end, address in subnet}
    for ends in pairs:
        link = _ExistingLink.__new__(_ExistingLink)
        link.intf1, link.intf2 = (
            _ExistingInterface(end.interface, mininet.nameToNode[end.node], link=link, moveIntfFn=MininetLink._ignore)
            for end in ends
        )
        for interface, end in zip((link.intf1, link.intf2), ends, strict=True):
            interface.ip = addresses.get(end)
        mininet.links.append(link)


class _ExistingLink(MininetLink):  # type: ignore[misc]
    """A link that is there already: Mininet shows it and neither makes nor removes it."""

    def stop(self) -> None:
        pass


class _ExistingInterface(Intf):  # type: ignore[misc]
    def config(self, **_params: object) -> dict[str, object]:
        return {}

    def updateIP(self) -> str | None:
        address: str | None = self.ip
        return address


def _index(ipr: IPRoute, interface: str) -> int:
    found = ipr.link_lookup(ifname=interface)
    if not found:
        raise OSError(f"interface {interface} is missing")
    return int(found[0])
