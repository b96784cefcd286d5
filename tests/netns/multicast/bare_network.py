"""A network with a plane on it and sockets at its ends, without a run: what the planes do is seen from outside."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from aggregator import sockets
from scheduler.planner import plan
from scheduler.topology import Topology
from testbed.links.kinds import choose_link_kind
from testbed.multicast.groups import Tree, allocate_trees
from testbed.multicast.interface import RunningPlane, Site
from testbed.multicast.planes import choose_plane
from testbed.network import naming
from testbed.network.emulated import EmulatedNetwork, build_network, emulated_links
from testbed.network.namespaces import entered
from testbed.run.state import mark_run, new_run, release_run
from testbed.scale import Scale
from testbed.topology.load import load_topology

PORT = 47000
CONFIRM_S = 20.0


@dataclass
class BareNetwork:
    """`trees` are not installed yet. `began` is when the plane was started."""

    topology: Topology
    network: EmulatedNetwork
    plane: RunningPlane
    trees: list[Tree]
    began: float

    def open_receivers(self) -> dict[str, socket.socket]:
        """A socket at each edge."""
        receivers = {}
        for island in self.topology.island_ids:
            with entered(self.network.pids[naming.edge_name(island)]):
                receivers[island] = sockets.open_receiver()
        return receivers

    def bring_up(self, trees: list[Tree], receivers: dict[str, socket.socket]) -> None:
        """Install trees, have every edge join those that serve its island, and wait until they are as planned."""
        self.plane.install(trees)
        for island_id, (island, receiver) in enumerate(receivers.items()):
            for tree in trees:
                if island in tree.receivers:
                    sockets.join(receiver, tree.group, tree.address, naming.edge_address(island_id))
        self.plane.confirm(trees, CONFIRM_S)

    def sender(self, tree: Tree) -> socket.socket:
        """A socket at the tree's source, connected to its group."""
        with entered(self.network.pids[naming.host_name(tree.source, tree.shard + 1)]):
            sender = sockets.open_sender(tree.address)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 32)
        sender.connect((tree.group, PORT))
        return sender


def _trees(topology: Topology, whole: Topology, live: list[Tree]) -> list[Tree]:
    planned = plan(topology, "all-to-all", memory_gb=32, payload_gb=1.692)
    island_ids = {name: number for number, name in enumerate(whole.island_ids)}
    return list(dict.fromkeys(allocate_trees(planned, island_ids, live=live).values()))


@contextmanager
def bare_network(plane_name: str, directory: Path, also_without: str = "") -> Iterator[BareNetwork]:
    """nine-city with its real delays, a plane in operation on it, and the trees of all-to-all.

    `also_without` names a core link, such as nyc-lon: then there are the trees of a network without it as well.
    """
    topology = load_topology("nine-city")
    allocated = _trees(topology, topology, [])
    if also_without:
        left = tuple(link for link in topology.links if set(link.id) != set(also_without.split("-")))
        allocated += _trees(replace(topology, links=left), topology, allocated)
    plane = choose_plane(plane_name, topology, [allocated])
    links = emulated_links(topology, Scale(), seed=1)
    with ExitStack() as undo:
        state = new_run()
        mark_run(state, directory)
        undo.callback(release_run, state.run_id)
        network = build_network(topology, links, choose_link_kind("auto", links), state.run_id)
        undo.callback(network.close)
        network.add_host_addresses(tree.address for tree in allocated)
        began = time.monotonic()
        running = plane.start(Site(topology, network.pids, state.run_id, directory))
        undo.callback(running.close)
        yield BareNetwork(topology, network, running, allocated, began)
