"""Names and addresses of everything in the emulated network, computed from the topology alone.

Island i has the subnet 10.1.i.0/24: its router is .1, its edge's bridge .2, host h is .(9 + h), and its further source
addresses are .(9 + h + 16·n). Core link n has a /30 of 10.2.0.0/16. With one host, the access link joins edge and host;
with more, it joins the edge and the switch of the island's LAN, to which the hosts are attached.
"""

from dataclasses import dataclass
from ipaddress import IPv4Address

from scheduler.topology import Topology
from testbed.errors import TestbedError

ISLAND_PREFIX = 24
CORE_PREFIX = 30
MAX_ISLANDS = 64  # contributors in a packet's bitmap
MAX_INTERFACE_NAME = 15
MAX_HOSTS = 16  # per island
MAX_HOST_ADDRESSES = 15  # per host

ROUTER_TO_EDGE = "e0"
EDGE_TO_ROUTER = "r0"
EDGE_BRIDGE = "br0"
EDGE_TO_HOST = "h0"
HOST_TO_EDGE = "e0"
LAN_BRIDGE = "br0"
LAN_TO_EDGE = "e0"

_ISLAND_BASE = int(IPv4Address("10.1.0.0"))
_CORE_BASE = int(IPv4Address("10.2.0.0"))


def edge_name(island: str) -> str:
    return f"{island}-e"


def host_name(island: str, host: int = 1) -> str:
    return f"{island}-h{host}"


def lan_name(island: str) -> str:
    """The switch of an island with more than one host."""
    return f"{island}-lan"


def lan_interface(host: int) -> str:
    """The switch's interface to a host."""
    return f"h{host}"


def access_node(island: str, hosts: int) -> str:
    """The node at the islands' end of the access link."""
    return host_name(island) if hosts == 1 else lan_name(island)


def core_interface(neighbour: str) -> str:
    """The interface on a router that leads to `neighbour`."""
    return f"c-{neighbour}"


@dataclass(frozen=True)
class CorePair:
    """A core link between two routers; `index` numbers the topology's links."""

    index: int
    a: str
    b: str

    @property
    def name(self) -> str:
        return f"{self.a}-{self.b}"

    @property
    def both_ways(self) -> tuple[tuple[str, str], tuple[str, str]]:
        return (self.a, self.b), (self.b, self.a)

    def address(self, router: str) -> str:
        return str(IPv4Address(_CORE_BASE + 4 * self.index + (1 if router == self.a else 2)))


def core_pairs(topology: Topology) -> tuple[CorePair, ...]:
    """The topology's links, two directions taken together, in the order of the topology.

    Raises TestbedError for a link that has one direction only.
    """
    directed = {(link.source, link.target) for link in topology.links}
    pairs: list[CorePair] = []
    for link in topology.links:
        if (link.target, link.source) not in directed:
            raise TestbedError(
                f"link {link.source}>{link.target} has no opposite direction; add {link.target}>{link.source}"
            )
        if not any({pair.a, pair.b} == {link.source, link.target} for pair in pairs):
            pairs.append(CorePair(len(pairs), link.source, link.target))
    return tuple(pairs)


def router_address(island_id: int) -> str:
    return _island_address(island_id, 1)


def edge_address(island_id: int) -> str:
    return _island_address(island_id, 2)


def host_address(island_id: int, host: int = 1, number: int = 0) -> str:
    """Address `number` of a host; 0 is the one that it is known by, the others are sources of further trees."""
    return _island_address(island_id, 9 + host + MAX_HOSTS * number)


def island_subnet(island_id: int) -> str:
    return f"{_island_address(island_id, 0)}/{ISLAND_PREFIX}"


def _island_address(island_id: int, number: int) -> str:
    return str(IPv4Address(_ISLAND_BASE + (island_id << 8) + number))


def node_names(topology: Topology, hosts: int) -> list[str]:
    """All nodes of the emulated network."""
    names = [*topology.transits]
    for island in topology.islands:
        names += [island.id, edge_name(island.id)]
        if hosts > 1:
            names.append(lan_name(island.id))
        names += [host_name(island.id, host) for host in range(1, hosts + 1)]
    return names


def check_hosts(hosts: int) -> None:
    """Raise TestbedError if islands cannot have so many hosts."""
    if hosts > MAX_HOSTS:
        raise TestbedError(f"--hosts-per-island {hosts}: an island has at most {MAX_HOSTS}")


def check_names(topology: Topology) -> None:
    """Raise TestbedError if the topology's names or size do not fit a network of namespaces."""
    if len(topology.islands) > MAX_ISLANDS:
        raise TestbedError(
            f"topology {topology.name} has {len(topology.islands)} islands; a packet's bitmap holds {MAX_ISLANDS}"
        )
    for node in (*(island.id for island in topology.islands), *topology.transits):
        if len(core_interface(node)) > MAX_INTERFACE_NAME:
            raise TestbedError(
                f"topology {topology.name}: node id {node!r} is too long for an interface name; use at most "
                f"{MAX_INTERFACE_NAME - len(core_interface(''))} characters"
            )
