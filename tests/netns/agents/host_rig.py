"""A data plane in a namespace of its own, with a fake run on its channel and a fake edge at the other end of a veth."""

import ctypes
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agents.exchange_area import ExchangeArea, map_exchange_area
from aggregator.wire.control import Channel, pair
from aggregator.wire.packet import (
    ETHERNET_BYTES,
    FLAG_BYPASSED,
    IPV4_UDP_BYTES,
    Header,
    Kind,
    Reason,
    frame_bytes,
    write_packet,
)

HOST, EDGE, PEER, OTHER_PEER = "10.213.0.1", "10.213.0.2", "10.213.0.3", "10.213.0.4"
HOLD_OFF_NS = 20_000_000
GROUPS = ["232.7.0.1", "232.7.0.2"]
VALUES, PER_CHUNK, CHUNKS = 4 * 2227 + 100, 2227, 5
JOB, EPOCH, ISLAND = 77, 3, 0
EXPECTED = 0b0110  # islands 1 and 2
MILLISECOND = 1_000_000


def _to(group: str) -> dict[str, object]:
    return {"source": HOST, "destinations": [group]}


PHASES = [
    {
        "group": GROUPS[0],
        **_to(GROUPS[0]),
        "offset_ns": 20 * MILLISECOND,
        "duration_ns": 100 * MILLISECOND,
        "expected": EXPECTED,
    },
    {"group": GROUPS[1], **_to(GROUPS[1]), "offset_ns": 0, "duration_ns": 50 * MILLISECOND, "expected": EXPECTED},
    {"group": None, "source": None, "destinations": [], "offset_ns": 0, "duration_ns": 0, "expected": 0},
]
_CLONE_NEWNET = 0x40000000
_ETH_P_IP = 0x0800
_SO_TIMESTAMPNS = 35
_SO_RCVBUFFORCE = 33
_TIMESPEC = struct.Struct("@qq")


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


@contextmanager
def inside(name: str) -> Iterator[None]:
    """This thread inside a namespace, to open sockets there."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        assert libc.setns(there, _CLONE_NEWNET) == 0
        try:
            yield
        finally:
            assert libc.setns(home, _CLONE_NEWNET) == 0
    finally:
        os.close(there)
        os.close(home)


@contextmanager
def two_namespaces() -> Iterator[tuple[str, str]]:
    """The host's and the edge's namespace, with a veth between them."""
    host, edge = (f"tbtest{os.getpid()}{role}" for role in "he")
    try:
        run("ip", "netns", "add", host)
        run("ip", "netns", "add", edge)
        run(
            "ip",
            "-n",
            host,
            "link",
            "add",
            "up0",
            "mtu",
            "9000",
            "type",
            "veth",
            "peer",
            "name",
            "down0",
            "netns",
            edge,
        )
        run("ip", "-n", edge, "link", "set", "down0", "mtu", "9000")
        for peer in (PEER, OTHER_PEER):
            run("ip", "-n", edge, "address", "add", f"{peer}/24", "dev", "down0")
        for name, interface, address in ((host, "up0", HOST), (edge, "down0", EDGE)):
            run(
                "ip",
                "netns",
                "exec",
                name,
                "ethtool",
                "-K",
                interface,
                "tx",
                "off",
                "tso",
                "off",
                "gso",
                "off",
                "gro",
                "off",
            )
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", interface)
            run("ip", "-n", name, "link", "set", interface, "up")
        yield host, edge
    finally:
        for name in (host, edge):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=20, check=False)


@dataclass(frozen=True)
class Frame:
    """A captured frame: where it went, its time to live and on-wire bytes, its arrival and its datagram."""

    destination: tuple[str, int]
    source: str
    ttl: int
    wire_bytes: int
    arrival_ns: int
    datagram: bytes


class Host:
    """A running data plane, seen from the run and from the edge."""

    def __init__(self, namespaces: tuple[str, str], directory: Path, fetch: bool = False) -> None:
        with inside(namespaces[1]):
            self.capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_IP))
            self.capture.bind(("down0", _ETH_P_IP))
            self.edge = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.capture.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 8 << 20)
        self.capture.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.capture.settimeout(5)
        self.edge.bind((EDGE, 47003))
        self.peer.bind((PEER, 47003))
        for sock in (self.edge, self.peer):
            sock.settimeout(5)
        self.area: ExchangeArea = map_exchange_area(directory / "area", 2, VALUES, PER_CHUNK, create=True)
        self.area.sent[:] = np.random.default_rng(1).integers(-(2**27), 2**27, (2, VALUES))
        ours, theirs = pair()
        ours.socket.settimeout(20)
        self.channel: Channel = ours
        command = ["nsenter", f"--net=/run/netns/{namespaces[0]}", sys.executable, "-m", "agents.dataplane"]
        self.process = subprocess.Popen(
            [*command, "--control-fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        self.hello = self.ask(
            "setup",
            island="nyc",
            island_id=ISLAND,
            shard=0,
            job=JOB,
            values_per_chunk=PER_CHUNK,
            shard_values=[VALUES],
            address=HOST,
            host_addresses=[HOST],
            interface="up0",
            most_catch_up_ns=20_000_000,
            exchange_area=str(directory / "area"),
            islands=3,
            depth=2,
            number_format=0,
            tag_key="",
            repair={
                "edge_address": EDGE,
                "peers": {PEER: 1, OTHER_PEER: 2},
                "fetch": fetch,
                "hold_off_ns": HOLD_OFF_NS,
                "uplink_bps": 1e8,
            },
        )
        assert self.ask("epoch", epoch=EPOCH, phases=PHASES) == {"type": "epoch_ready", "epoch": EPOCH}

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        self.channel.send(kind, **fields)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        message = self.channel.receive()
        assert message is not None, self.process.communicate(timeout=5)[1]
        return message

    def arm(self, number: int, phase: int) -> None:
        assert self.ask("arm", round=number, epoch=EPOCH, phase=phase) == {"type": "armed", "round": number}

    def start(self, number: int, give_up_ms: int = 5000, fetch_ms: int = 10**9) -> int:
        start_ns = time.monotonic_ns() + 20 * MILLISECOND
        self.channel.send(
            "start",
            round=number,
            start_ns=start_ns,
            fetch_ns=start_ns + fetch_ms * MILLISECOND,
            give_up_ns=start_ns + give_up_ms * MILLISECOND,
        )
        return start_ns

    def frames(self, count: int) -> list[Frame]:
        """The next `count` frames with UDP from the host."""
        frames: list[Frame] = []
        while len(frames) < count:
            frames += self._frame()
        return frames

    def more_frames(self, wait_s: float) -> list[Frame]:
        """What else the host sends within `wait_s`."""
        frames: list[Frame] = []
        self.capture.settimeout(wait_s)
        with suppress(TimeoutError):
            while True:
                frames += self._frame()
        self.capture.settimeout(5)
        return frames

    def _frame(self) -> list[Frame]:
        data, ancillary, _, address = self.capture.recvmsg(65536, 128)
        if address[2] == socket.PACKET_OUTGOING:
            return []
        stamp = next(value for level, kind, value in ancillary if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS))
        seconds, nanoseconds = _TIMESPEC.unpack(stamp)
        ip = data[ETHERNET_BYTES:]
        assert ip[0] == 0x45
        assert ip[9] == socket.IPPROTO_UDP
        frame = Frame(
            destination=(socket.inet_ntoa(ip[16:20]), int.from_bytes(ip[22:24], "big")),
            source=socket.inet_ntoa(ip[12:16]),
            ttl=ip[8],
            wire_bytes=len(data),
            arrival_ns=seconds * 10**9 + nanoseconds - (time.time_ns() - time.monotonic_ns()),
            datagram=data[ETHERNET_BYTES + IPV4_UDP_BYTES :],
        )
        return [frame]

    def send_result(self, header: Header, values: np.ndarray) -> None:
        self.send(self.edge, header, values)

    def send(self, sender: socket.socket, header: Header, values: np.ndarray, port: int = 47001) -> None:
        """Send a packet to the host, as its edge or as its peer."""
        out = bytearray(frame_bytes(len(values)))
        size = write_packet(memoryview(out), header, values.astype("<i4").tobytes())
        sender.sendto(out[:size], (HOST, port))

    def end(self) -> None:
        for sock in (self.capture, self.edge, self.peer):
            sock.close()
        self.channel.close()
        if self.process.poll() is None:
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.communicate(timeout=10)


OTHERS = np.random.default_rng(2).integers(-(2**27), 2**27, (3, VALUES), dtype=np.int32)  # what islands 0 to 2 send


def chunk_slice(chunk: int) -> slice:
    return slice(chunk * PER_CHUNK, min((chunk + 1) * PER_CHUNK, VALUES))


def result(number: int, chunk: int, bitmap: int) -> tuple[Header, np.ndarray]:
    part = chunk_slice(chunk)
    values = OTHERS[[island for island in range(3) if bitmap >> island & 1], part].sum(axis=0, dtype=np.int32)
    header = Header(
        kind=Kind.RESULT,
        source=ISLAND,
        job=JOB,
        epoch=EPOCH,
        round=number,
        shard=0,
        chunk=chunk,
        value_count=len(values),
        contributors=bitmap.bit_count(),
        bitmap=bitmap,
        reason=Reason.COMPLETE if bitmap == EXPECTED else Reason.TIMEOUT,
    )
    return header, values


def bypassed(number: int, chunk: int, island: int) -> tuple[Header, np.ndarray]:
    header, values = result(number, chunk, 1 << island)
    return replace(header, kind=Kind.CONTRIBUTION, source=island, flags=FLAG_BYPASSED, reason=Reason.NONE), values


def expected_sums() -> list[int]:
    sums: list[int] = OTHERS[1:].sum(axis=0).tolist()
    return sums
