"""Planes seen from outside: ready in time, nothing lost from the first packet on, only what is planned on the wire."""

import signal
import socket
import struct
import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from testbed.multicast.counters import RouterCounters, drop_warnings
from testbed.multicast.frr import missing_package
from testbed.multicast.groups import Tree
from testbed.multicast.routing_traffic import RoutingTraffic
from testbed.network import naming
from testbed.network.namespaces import entered
from tests.netns.multicast.bare_network import PORT, BareNetwork, bare_network

NEEDS_FRR = pytest.mark.skipif(missing_package() is not None, reason=str(missing_package()))
PLANES = ["direct", pytest.param("pim", marks=NEEDS_FRR)]

BURST = 200
READY_WITHIN_S = {"direct": 0.5, "pim": 3.0}
WAIT_S = 10.0


@pytest.mark.parametrize("plane", PLANES)
def test_first_packets_of_every_stream_arrive_cold(plane: str, tmp_path: Path) -> None:
    with bare_network(plane, tmp_path, also_without="nyc-lon") as bare:
        trees = [tree for tree in bare.trees if not tree.group.endswith(".2")]
        others = [tree for tree in bare.trees if tree not in trees]
        with ExitStack() as opened:
            receivers = bare.open_receivers()
            for receiver in receivers.values():
                opened.enter_context(receiver)
            bare.bring_up(trees, receivers)
            ready_s = time.monotonic() - bare.began
            # No probe was sent: these are the first packets that the trees ever carry.
            _send_burst(bare, trees)
            first = _receive(trees, receivers)
            # Trees of the same sources that go other ways, some from a second address, beside the first.
            bare.bring_up(others, receivers)
            _send_burst(bare, bare.trees)
            both = _receive(bare.trees, receivers)
            _check_that_drops_are_told(bare)
            _check_that_routing_is_told_from_streams(bare)
    known = {naming.host_address(number) for number in range(len(bare.topology.islands))}
    assert {tree.address for tree in others} - known
    assert (len(trees), len(others)) == (9, 9)
    # Each packet once at each of 8 receivers.
    assert first == Counter({(tree.group, to, n): 1 for tree in trees for to in tree.receivers for n in range(BURST)})
    assert both == Counter(
        {(tree.group, to, n): 1 for tree in bare.trees for to in tree.receivers for n in range(BURST)}
    )
    assert len(first) == 72 * BURST
    assert ready_s <= READY_WITHIN_S[plane]


def _check_that_drops_are_told(bare: BareNetwork) -> None:
    """Packets on nyc's first tree that get no further than the next routers, and some of lon's from the wrong side."""
    of_nyc, of_lon = (next(tree for tree in bare.trees if tree.source == source) for source in ("nyc", "lon"))
    counters = RouterCounters(bare.network.pids, bare.topology.nodes)
    _send_burst(bare, [of_nyc], time_to_live=2)
    header = struct.pack("=BBHHHBBH", 0x45, 0, 0, 0, 0, 32, socket.IPPROTO_UDP, 0)
    addresses = IPv4Address(of_lon.address).packed + IPv4Address(of_lon.group).packed
    with entered(bare.network.pids["nyc-h1"]):
        liar = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    with liar:
        for _ in range(5):
            liar.sendto(header + addresses + bytes(8), (of_lon.group, 0))
    time.sleep(0.5)  # everything has arrived by then
    drops = counters.read(trees_moved=False)
    assert drops["nyc"].wrong_interface == 5
    stopped = [child for parent, child in of_nyc.links if parent == "nyc"]
    # The kernel counts without locks, so that it may miss a few.
    assert all(drops[router].not_sent_on >= 0.9 * BURST for router in stopped)
    assert not any(drops[router].not_sent_on for router in drops.keys() - stopped)
    told = drop_warnings(drops)
    assert any("RPF failures" in line and "nyc 5" in line for line in told)
    assert any("time to live used up" in line for line in told)


def _check_that_routing_is_told_from_streams(bare: BareNetwork) -> None:
    """BFD's and OSPF's packets from nyc to lon, as if daemons had sent them, beside others that are none of theirs."""
    (pair,) = (pair for pair in naming.core_pairs(bare.topology) if {pair.a, pair.b} == {"nyc", "lon"})
    to_lon = pair.address("lon")
    traffic = RoutingTraffic(bare.topology, bare.network.pids)
    with entered(bare.network.pids["nyc"]):
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        ospf = socket.socket(socket.AF_INET, socket.SOCK_RAW, 89)
    with datagrams, ospf:
        for _ in range(10):
            datagrams.sendto(bytes(24), (to_lon, 3784))
            datagrams.sendto(bytes(24), (to_lon, PORT))
            ospf.sendto(bytes(44), (to_lon, 0))
    time.sleep(0.2)
    counted = {direction: count for direction, count in traffic.read().items() if count}
    traffic.close()
    sent = 10 * (14 + 20 + 8 + 24) + 10 * (14 + 20 + 44)
    if bare.plane.routing_bytes():
        assert sent <= counted["nyc", "lon"] < sent + 1000  # pimd may have sent something meanwhile
    else:
        assert counted == {("nyc", "lon"): sent}


def _send_burst(bare: BareNetwork, trees: list[Tree], time_to_live: int = 32) -> None:
    for tree in trees:
        with bare.sender(tree) as sender:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, time_to_live)
            for number in range(BURST):
                sender.send(IPv4Address(tree.group).packed + number.to_bytes(2, "big"))


def _receive(trees: list[Tree], receivers: dict[str, socket.socket]) -> Counter[tuple[str, str, int]]:
    """How often each packet of a burst on `trees` came, by group, receiver and number."""
    wanted = sum(len(tree.receivers) for tree in trees) * BURST
    arrived: Counter[tuple[str, str, int]] = Counter()
    deadline = time.monotonic() + WAIT_S
    quiet_until = 0.0
    while time.monotonic() < deadline and (arrived.total() < wanted or time.monotonic() < quiet_until):
        for island, receiver in receivers.items():
            while True:
                try:
                    data = receiver.recv(64)
                except BlockingIOError:
                    break
                arrived[str(IPv4Address(data[:4])), island, int.from_bytes(data[4:], "big")] += 1
        if arrived.total() == wanted and not quiet_until:
            quiet_until = time.monotonic() + 0.3  # a duplicate would follow
        time.sleep(0.01)
    return arrived


@NEEDS_FRR
def test_igmp_and_pim_speak_of_the_planned_trees_only(tmp_path: Path) -> None:
    """Captured at a router in the middle and dissected by tshark, from the first join to the last prune."""
    capture = tmp_path / "lon.pcap"
    with bare_network("pim", tmp_path) as bare:
        pid = bare.network.pids["lon"]
        enter = ["nsenter", f"--net=/proc/{pid}/ns/net"]
        tcpdump = subprocess.Popen(
            [*enter, "tcpdump", "-i", "any", "-U", "--immediate-mode", "-Z", "root", "-w", str(capture), "igmp or pim"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert tcpdump.stderr is not None
        assert any("listening on" in line for line in tcpdump.stderr)
        receivers = bare.open_receivers()
        bare.bring_up(bare.trees, receivers)
        for receiver in receivers.values():
            receiver.close()
        _wait_until_forgotten(pid)
        time.sleep(1.0)  # tcpdump may hold the last packets back for a second
        tcpdump.send_signal(signal.SIGINT)
        tcpdump.communicate(timeout=WAIT_S)
    planned = {(tree.address, tree.group) for tree in bare.trees}
    over_lon = {
        (tree.address, tree.group)
        for tree in bare.trees
        if any("lon" in (parent, child) for parent, child in tree.links)
    }
    to_lon = {(tree.address, tree.group) for tree in bare.trees if "lon" in tree.receivers}

    reported = _channels(capture, "igmp.type == 0x22", "igmp.saddr", "igmp.maddr")
    assert set(reported) == to_lon
    joined, pruned = _joins_and_prunes(capture)
    assert joined == over_lon  # what lon asked its neighbours for, and they lon
    assert pruned  # the leaves were passed on
    assert pruned <= planned


def _wait_until_forgotten(pid: int) -> None:
    """Wait until a router has no entry that goes anywhere."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        lines = Path(f"/proc/{pid}/net/ip_mr_cache").read_text(encoding="ascii").splitlines()[1:]
        if all(len(line.split()) <= 6 for line in lines):
            return
        time.sleep(0.05)
    pytest.fail("the router still forwards after all receivers have left")


def _fields(capture: Path, condition: str, *fields: str) -> list[list[list[str]]]:
    """For each packet that fulfils the condition, the values of each field."""
    command = ["tshark", "-r", str(capture), "-Y", condition, "-T", "fields", "-E", "occurrence=a"]
    command += [word for field in fields for word in ("-e", field)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [[part.split(",") if part else [] for part in line.split("\t")] for line in done.stdout.splitlines() if line]


def _joins_and_prunes(capture: Path) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """The (source, group) pairs that PIM messages join and prune; one message may do both, for several groups."""
    joined: set[tuple[str, str]] = set()
    pruned: set[tuple[str, str]] = set()
    names = ("pim.group", "pim.numjoins", "pim.join_ip", "pim.numprunes", "pim.prune_ip")
    for groups, join_counts, joins, prune_counts, prunes in _fields(capture, "pim.type == 3", *names):
        # tshark may give a group twice, once within its heading.
        each = groups[:: len(groups) // len(join_counts)]
        for group, join_count, prune_count in zip(each, join_counts, prune_counts, strict=True):
            joined |= {(joins.pop(0), group) for _ in range(int(join_count))}
            pruned |= {(prunes.pop(0), group) for _ in range(int(prune_count))}
        assert not joins + prunes
    return joined, pruned


def _channels(capture: Path, condition: str, source_field: str, group_field: str) -> Counter[tuple[str, str]]:
    """(source, group) pairs of IGMPv3 records, each with one source."""
    pairs: Counter[tuple[str, str]] = Counter()
    for sources, groups in _fields(capture, condition, source_field, group_field):
        records = [group for group in groups if group.startswith("232.")]
        pairs.update(zip(sources, records, strict=True))
    return pairs
