"""Planes seen from outside: ready in time, nothing lost from the first packet on, only what is planned on the wire."""

import signal
import socket
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from testbed.multicast.frr import missing_package
from testbed.network import naming
from tests.netns.multicast.bare_network import CONFIRM_S, BareNetwork, bare_network

NEEDS_FRR = pytest.mark.skipif(missing_package() is not None, reason=str(missing_package()))
PLANES = ["direct", pytest.param("pim", marks=NEEDS_FRR)]

BURST = 200
READY_WITHIN_S = {"direct": 0.5, "pim": 3.0}
WAIT_S = 10.0


@pytest.mark.parametrize("plane", PLANES)
def test_first_packets_of_every_stream_arrive_cold(plane: str, tmp_path: Path) -> None:
    with bare_network(plane, tmp_path) as bare:
        bare.plane.install(bare.trees)
        receivers = bare.join_all(bare.trees)
        bare.plane.confirm(bare.trees, CONFIRM_S)
        ready_s = time.monotonic() - bare.began
        # No probe was sent: these are the first packets that the trees ever carry.
        for tree in bare.trees:
            with bare.sender(tree) as sender:
                for number in range(BURST):
                    sender.send(number.to_bytes(2, "big"))
        expected = {(tree.source, receiver): set(range(BURST)) for tree in bare.trees for receiver in tree.receivers}
        arrived, packets = _receive(bare, receivers, len(expected) * BURST)
    assert len(expected) == 72
    assert arrived == expected
    assert packets == 72 * BURST  # none came twice
    assert ready_s <= READY_WITHIN_S[plane]


def _receive(
    bare: BareNetwork, receivers: dict[str, socket.socket], wanted: int
) -> tuple[dict[tuple[str, str], set[int]], int]:
    """The numbers that came from each source to each receiver, and how many packets there were in all."""
    sources = {tree.address: tree.source for tree in bare.trees}
    arrived: dict[tuple[str, str], set[int]] = {}
    packets = 0
    deadline = time.monotonic() + WAIT_S
    quiet_until = 0.0
    while time.monotonic() < deadline and (packets < wanted or time.monotonic() < quiet_until):
        for island, receiver in receivers.items():
            while True:
                try:
                    data, (address, _) = receiver.recvfrom(64)
                except BlockingIOError:
                    break
                arrived.setdefault((sources[address], island), set()).add(int.from_bytes(data, "big"))
                packets += 1
        if packets == wanted and not quiet_until:
            quiet_until = time.monotonic() + 0.3  # a duplicate would follow
        time.sleep(0.01)
    for receiver in receivers.values():
        receiver.close()
    return arrived, packets


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
        bare.plane.install(bare.trees)
        receivers = bare.join_all(bare.trees)
        bare.plane.confirm(bare.trees, CONFIRM_S)
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
        for group, join_count, prune_count in zip(groups, join_counts, prune_counts, strict=True):
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


@pytest.mark.parametrize("plane", PLANES)
def test_trees_of_a_source_that_disagree_work_side_by_side(plane: str, tmp_path: Path) -> None:
    with bare_network(plane, tmp_path, also_without="nyc-lon") as bare:
        known = {naming.host_address(number) for number in range(len(bare.topology.islands))}
        assert {tree.address for tree in bare.trees} > known  # some sources needed a second address
        bare.plane.install(bare.trees)
        receivers = bare.join_all(bare.trees)
        bare.plane.confirm(bare.trees, CONFIRM_S)
        for number, tree in enumerate(bare.trees):
            with bare.sender(tree) as sender:
                sender.send(number.to_bytes(2, "big"))
        arrived, packets = _receive(bare, receivers, sum(len(tree.receivers) for tree in bare.trees))
    expected: dict[tuple[str, str], set[int]] = {}
    for number, tree in enumerate(bare.trees):
        for receiver in tree.receivers:
            expected.setdefault((tree.source, receiver), set()).add(number)
    assert arrived == expected
    assert packets == sum(map(len, expected.values()))
