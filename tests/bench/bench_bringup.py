"""How long the 27-node network of nine-city takes to come up, beside stock Mininet with the same graph.

    sudo /opt/testbed/venv/bin/python tests/bench/bench_bringup.py [--repeat 5]

Ours is complete: links with delay, rate and queue, bridges, addresses, routes, neighbours, and the direct plane's
trees for all-to-all. Stock Mininet gets the same nodes and plain veth links, with its own addresses; it has no delays
here, no routes, no multicast. The two take turns, so that what else runs on the machine meets both.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mininet.net import Mininet
from mininet.node import Node

from scheduler.planner import plan
from testbed.links.kinds import choose_link_kind
from testbed.multicast.interface import Site
from testbed.multicast.planes import choose_plane
from testbed.network import naming
from testbed.network.emulated import build_network, emulated_links
from testbed.run.frames import frame_payload
from testbed.run.program import make_epoch
from testbed.run.settings import REFERENCE_PAYLOAD_GB
from testbed.run.state import marked_run
from testbed.scale import Scale
from testbed.topology.load import load_topology

TARGET_S = 1.5


def ours() -> float:
    topology, scale = load_topology("nine-city"), Scale()
    links = emulated_links(topology, scale, 1)
    kind = choose_link_kind("auto", links)
    planned = plan(topology, "all-to-all", memory_gb=32.0, payload_gb=REFERENCE_PAYLOAD_GB)
    framing = frame_payload(scale.size_bytes(REFERENCE_PAYLOAD_GB))
    trees = make_epoch(0, planned, topology, framing, scale).distinct_trees()
    plane = choose_plane("direct", topology, [trees])
    with marked_run() as state, tempfile.TemporaryDirectory() as directory:
        began = time.monotonic()
        network = build_network(topology, links, kind, state.run_id)
        running = plane.start(Site(topology, network.pids, state.run_id, Path(directory)))
        running.install(trees)
        took = time.monotonic() - began
        running.close()
        network.close()
    return took


def stock() -> float:
    topology = load_topology("nine-city")
    began = time.monotonic()
    network = Mininet(controller=None, switch=None, build=False)
    for island in topology.islands:
        for name in (island.id, naming.edge_name(island.id), naming.host_name(island.id)):
            network.addHost(name, cls=Node)
    for pair in naming.core_pairs(topology):
        network.addLink(pair.a, pair.b)
    for island in topology.islands:
        network.addLink(island.id, naming.edge_name(island.id))
        network.addLink(naming.edge_name(island.id), naming.host_name(island.id))
    network.build()
    network.start()
    took = time.monotonic() - began
    network.stop()
    return took


def show(label: str, times_s: list[float]) -> None:
    ordered = ", ".join(f"{one:.2f}" for one in times_s)
    print(f"{label:16} median {statistics.median(times_s):.2f} s, best {min(times_s):.2f} s   ({ordered})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    times: dict[Callable[[], float], list[float]] = {ours: [], stock: []}
    loads = []
    for _ in range(repeat):
        for build, times_s in times.items():
            loads.append(os.getloadavg()[0])
            times_s.append(build())
    show("testbed", times[ours])
    show("stock Mininet", times[stock])
    print(f"target {TARGET_S} s; load of the machine {min(loads):.1f} to {max(loads):.1f}")


if __name__ == "__main__":
    main()
