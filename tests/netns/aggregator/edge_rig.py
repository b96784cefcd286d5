"""An edge process in namespaces of its own: contributors on one side of its bridge, a host on the other."""

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from aggregator.wire import control
from aggregator.wire.packet import (
    CONTRIBUTION_PORT,
    HEADER_BYTES,
    RESULT_PORT,
    Header,
    Kind,
    parse_packet,
    write_packet,
)

EDGE, HOST, OTHER_HOST = "10.9.0.2", "10.9.0.10", "10.9.0.11"
CONTRIBUTORS = {"10.9.0.21": 1, "10.9.0.22": 2, "10.9.0.23": 5}
STRANGER = "10.9.0.99"
JOB, ISLAND_ID = 77, 0
CLONE_NEWNET = 0x40000000
SO_RCVBUFFORCE = 33
WAIT_S = 5.0


def group_of(source: str) -> str:
    return "232.1.0." + source.rsplit(".", 1)[1]


def _setns(fd: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(fd, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


@dataclass
class Namespace:
    """A network namespace that lives as long as a sleeping child."""

    process: subprocess.Popen[bytes] = field(
        default_factory=lambda: subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec sleep 300"], stdout=subprocess.PIPE
        )
    )

    def __post_init__(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def command(self, *argv: str) -> list[str]:
        return ["nsenter", "-t", str(self.process.pid), "-n", *argv]

    def run(self, *argv: str) -> None:
        subprocess.run(self.command(*argv), check=True)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What this thread opens meanwhile belongs to this namespace."""
        with open("/proc/self/ns/net") as home, open(f"/proc/{self.process.pid}/ns/net") as there:
            _setns(there.fileno())
            try:
                yield
            finally:
                _setns(home.fileno())

    def udp_socket(self) -> socket.socket:
        """A socket that belongs to this namespace."""
        with self.entered():
            return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class EdgeRig:
    """A running edge process, set up but without an epoch."""

    def __init__(self, wan: Namespace, edge: Namespace, lan: Namespace, setup: dict[str, Any]):
        self.values_per_chunk: int = setup["values_per_chunk"]
        self.channel, theirs = control.pair()
        self.channel.socket.settimeout(WAIT_S)
        argv = edge.command(sys.executable, "-m", "aggregator.edge", "--control-fd", str(theirs.fileno()))
        self.process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True)
        theirs.close()
        self.channel.send("setup", **setup)
        self.lan = lan
        self.host = lan.udp_socket()
        self.host.bind((HOST, RESULT_PORT))
        self.host.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 4 << 20)
        self.host.settimeout(WAIT_S)
        self.senders: dict[str, socket.socket] = {}
        for address in (*CONTRIBUTORS, STRANGER):
            sender = self.senders[address] = wan.udp_socket()
            sender.bind((address, 0))
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
        self.memory = memoryview(bytearray(10_000))

    def ask(self, kind: str, **fields: Any) -> control.Message:
        self.channel.send(kind, **fields)
        return self.answer()

    def answer(self) -> control.Message:
        message = self.channel.receive()
        assert message is not None, "the edge has closed its channel"
        return message

    def begin(self, expected: int = 0b100110, deadline_ns: int = 60_000_000_000, epoch: int = 0) -> None:
        """One epoch with one phase, and its round 0 armed."""
        groups = [{"group": group_of(source), "source": source} for source in CONTRIBUTORS]
        phases = [{"expected": expected, "deadline_ns": deadline_ns}]
        assert self.ask("epoch", epoch=epoch, phases=phases, groups=groups)["type"] == "epoch_ready"
        assert self.ask("arm", round=0, epoch=epoch, phase=0) == {"type": "armed", "round": 0}

    def header(self, sender: str, **fields: Any) -> Header:
        given: dict[str, Any] = {
            "kind": Kind.CONTRIBUTION,
            "source": CONTRIBUTORS.get(sender, 9),
            "job": JOB,
            "epoch": 0,
            "round": 0,
            "shard": 0,
            "chunk": 0,
            "value_count": self.values_per_chunk,
            **fields,
        }
        return Header(**{"bitmap": 1 << given["source"], **given})

    def contribute(self, sender: str, values: np.ndarray, to: str | None = None, **fields: Any) -> None:
        header = self.header(sender, **{"value_count": len(values), **fields})
        size = write_packet(self.memory, header, values.astype("<i4").tobytes())
        self.send_raw(sender, self.memory[:size], to)

    def send_raw(self, sender: str, datagram: memoryview | bytes, to: str | None = None) -> None:
        self.senders[sender].sendto(datagram, (to or group_of(sender), CONTRIBUTION_PORT))

    def result(self) -> tuple[Header, np.ndarray]:
        """The next datagram at the host."""
        datagram = memoryview(self.host.recv(10_000))
        return parse_packet(datagram), np.frombuffer(datagram[HEADER_BYTES:], "<i4")

    def close(self) -> None:
        """Safe to call twice."""
        self.channel.close()
        for sock in (self.host, *self.senders.values()):
            sock.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@contextmanager
def edge_network() -> Iterator[tuple[Namespace, Namespace, Namespace]]:
    """Namespaces of the WAN side, the edge and the host, connected as an island is."""
    wan, edge, lan = spaces = (Namespace(), Namespace(), Namespace())
    try:
        edge.run("ip", "link", "add", "br0", "type", "bridge", "mcast_snooping", "0", "stp_state", "0")
        for name, other, addresses in (("w0", wan, (*CONTRIBUTORS, STRANGER)), ("h0", lan, (HOST, OTHER_HOST))):
            edge.run(
                "ip", "link", "add", name, "mtu", "9000", "type", "veth", "peer", "e0", "netns", str(other.process.pid)
            )
            edge.run("ip", "link", "set", name, "master", "br0", "up")
            for address in addresses:
                other.run("ip", "address", "add", f"{address}/24", "dev", "e0")
            other.run("ip", "link", "set", "e0", "mtu", "9000", "up")
        edge.run("ip", "address", "add", f"{EDGE}/24", "dev", "br0")
        edge.run("ip", "link", "set", "br0", "up")
        edge.run("sh", "-c", "echo 1000 > /proc/sys/net/ipv4/igmp_max_memberships")
        yield spaces
    finally:
        for space in spaces:
            space.close()


def setup_message(**fields: Any) -> dict[str, Any]:
    return {
        "island": "nyc",
        "island_id": ISLAND_ID,
        "job": JOB,
        "values_per_chunk": 2000,
        "shard_values": [20_500],
        "host_addresses": [HOST],
        "address": EDGE,
        "interface": "br0",
        "contributors": CONTRIBUTORS,
        "slots": 64,
        "engine": "numpy",
        "line_rate_bps": 1e9,
        **fields,
    }


def root_refusal() -> str:
    """Why namespaces cannot be made here; empty if they can."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    return "" if Path("/proc/self/ns/net").exists() else "needs network namespaces"
