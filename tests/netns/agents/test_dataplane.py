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
import pytest

from agents.exchange_area import ExchangeArea, map_exchange_area
from agents.sending import send_times_ns
from aggregator.wire.control import Channel, pair
from aggregator.wire.packet import (
    ETHERNET_BYTES,
    FLAG_BYPASSED,
    HEADER_BYTES,
    IPV4_UDP_BYTES,
    Header,
    Kind,
    Reason,
    frame_bytes,
    parse_packet,
    write_packet,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for network namespaces")

HOST, EDGE = "10.213.0.1", "10.213.0.2"
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


@pytest.fixture(scope="module")
def namespaces() -> Iterator[tuple[str, str]]:
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

    def __init__(self, namespaces: tuple[str, str], directory: Path) -> None:
        with inside(namespaces[1]):
            self.capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_IP))
            self.capture.bind(("down0", _ETH_P_IP))
            self.edge = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.capture.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 8 << 20)
        self.capture.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.capture.settimeout(5)
        self.edge.bind((EDGE, 0))
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

    def start(self, number: int, give_up_ms: int = 5000) -> int:
        start_ns = time.monotonic_ns() + 20 * MILLISECOND
        self.channel.send("start", round=number, start_ns=start_ns, give_up_ns=start_ns + give_up_ms * MILLISECOND)
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
        out = bytearray(frame_bytes(len(values)))
        size = write_packet(memoryview(out), header, values.astype("<i4").tobytes())
        self.edge.sendto(out[:size], (HOST, 47001))

    def end(self) -> None:
        for sock in (self.capture, self.edge):
            sock.close()
        self.channel.close()
        if self.process.poll() is None:
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.communicate(timeout=10)


@pytest.fixture
def host(namespaces: tuple[str, str], tmp_path: Path) -> Iterator[Host]:
    running = Host(namespaces, tmp_path)
    yield running
    running.end()


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


def test_says_who_it_is_and_ends_when_told(host: Host) -> None:
    assert host.hello["type"] == "hello"
    assert host.hello["pid"] == host.process.pid
    assert host.hello["receive_buffer_bytes"] >= 1 << 20
    if host.hello["realtime"]:
        assert os.sched_getscheduler(host.process.pid) == os.SCHED_FIFO
    host.channel.send("stop")
    assert host.process.wait(timeout=10) == 0


def test_a_probe_goes_to_each_group_of_the_epoch_once(host: Host) -> None:
    before = time.monotonic_ns()
    assert host.ask("probe", epoch=EPOCH, probe=4) == {"type": "probed", "probe": 4, "sent": 2}
    after = time.monotonic_ns()
    frames = host.frames(2)
    assert [frame.destination for frame in frames] == [(group, 47000) for group in GROUPS]
    for frame, group in zip(frames, GROUPS, strict=True):
        header = parse_packet(memoryview(frame.datagram))
        assert (header.kind, header.chunk, header.epoch, header.job) == (Kind.PROBE, 4, EPOCH, JOB)
        assert socket.inet_ntoa(header.number.to_bytes(4, "big")) == group
        low, high = np.frombuffer(frame.datagram[HEADER_BYTES:], "<u4").tolist()
        assert before <= (high << 32 | low) <= after
    assert host.more_frames(0.1) == []


def test_a_round_is_sent_whole_to_its_group_at_its_rate(host: Host) -> None:
    wire_bytes = [frame_bytes(chunk_slice(chunk).stop - chunk_slice(chunk).start) for chunk in range(CHUNKS)]
    host.arm(5, 0)
    start_ns = host.start(5)
    frames = host.frames(CHUNKS)
    assert {frame.destination for frame in frames} == {(GROUPS[0], 47000)}
    assert {(frame.source, frame.ttl) for frame in frames} == {(HOST, 32)}
    assert [frame.wire_bytes for frame in frames] == wire_bytes
    for chunk, frame in enumerate(frames):
        header = parse_packet(memoryview(frame.datagram))
        assert (header.kind, header.source, header.bitmap, header.contributors) == (Kind.CONTRIBUTION, 0, 1, 1)
        assert (header.job, header.epoch, header.round, header.shard) == (JOB, EPOCH, 5, 0)
        assert (header.chunk, header.number) == (chunk, chunk)
        values = np.frombuffer(frame.datagram[HEADER_BYTES:], "<i4")
        assert values.tolist() == host.area.sent[1, chunk_slice(chunk)].tolist()
    due = send_times_ns(wire_bytes, start_ns + 20 * MILLISECOND, 100 * MILLISECOND)
    late = np.array([frame.arrival_ns for frame in frames]) - due
    assert late.min() > -1 * MILLISECOND  # the two clocks are compared after the fact
    assert np.median(late) < 5 * MILLISECOND
    for chunk in range(CHUNKS):
        host.send_result(*result(5, chunk, EXPECTED))
    done = host.answer()
    assert (done["sent"], done["send_retries"]) == (CHUNKS, 0)
    lateness = done["send_lateness_us"]
    assert 0 <= lateness["median"] <= lateness["p99"] <= lateness["max"]
    assert lateness["median"] < 5000
    assert host.more_frames(0.1) == []


def test_the_round_is_done_when_the_last_result_is_in(host: Host) -> None:
    """Out of order, twice, in parts, overlapping, bypassed, of other rounds, damaged: each is told apart."""
    host.arm(8, 1)
    start_ns = host.start(8)
    host.frames(CHUNKS)
    host.send_result(*result(8, 4, EXPECTED))
    host.send_result(*result(8, 4, EXPECTED))  # a duplicate
    host.send_result(*result(8, 0, 0b0010))
    host.send_result(*result(8, 0, EXPECTED))  # overlaps
    host.send_result(*bypassed(8, 0, 2))
    host.send_result(*bypassed(8, 0, 2))  # a duplicate
    host.send_result(*result(7, 1, EXPECTED))  # late
    host.send_result(*result(9, 1, EXPECTED))  # refused: of no round yet
    host.edge.sendto(b"not a packet", (HOST, 47001))  # refused
    host.send_result(*result(8, 1, 0b0100))
    host.send_result(*result(8, 1, 0b0010))
    host.send_result(*result(8, 2, EXPECTED))
    time.sleep(0.1)
    host.channel.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        host.channel.receive()  # chunk 3 is missing
    host.channel.socket.settimeout(20)
    before = time.monotonic_ns()
    host.send_result(*result(8, 3, EXPECTED))
    done = host.answer()
    assert before <= done.pop("completed_ns") <= time.monotonic_ns()
    assert done.pop("send_lateness_us")["max"] >= 0
    assert sum(frames for _, frames in done.pop("send_lateness_histogram")) == CHUNKS
    assert done == {
        "type": "done",
        "round": 8,
        "chunks": CHUNKS,
        "expected": 2 * CHUNKS,
        "delivered": 2 * CHUNKS,
        "complete": 3,
        "partial": 3,
        "bypassed": 1,
        "duplicates": 2,
        "overlaps": 1,
        "late": 1,
        "refused": 2,
        "socket_overflows": 0,
        "sent": CHUNKS,
        "send_retries": 0,
    }
    assert start_ns < before
    assert host.area.summed[0].tolist() == expected_sums()
    assert host.area.bitmaps[0].tolist() == [EXPECTED] * CHUNKS
    assert not host.area.summed[1].any()


def test_a_round_that_lacks_results_is_given_up_in_time_and_left_alone_then(host: Host) -> None:
    host.arm(0, 0)
    start_ns = host.start(0, give_up_ms=300)
    host.frames(CHUNKS)
    host.send_result(*result(0, 1, EXPECTED))
    host.send_result(*result(0, 2, 0b0010))
    done = host.answer()
    told_ns = time.monotonic_ns()
    assert start_ns + 300 * MILLISECOND <= told_ns < start_ns + 5000 * MILLISECOND
    assert (done["expected"], done["delivered"], done["complete"], done["partial"]) == (2 * CHUNKS, 3, 1, 1)
    assert start_ns < done["completed_ns"] < start_ns + 300 * MILLISECOND
    assert host.area.bitmaps[0].tolist() == [0, EXPECTED, 0b0010, 0, 0]
    summed = host.area.summed[0].tolist()
    host.send_result(*result(0, 3, EXPECTED))
    host.arm(1, 2)
    host.start(1)
    after = host.answer()
    assert (after["round"], after["late"], after["complete"]) == (1, 1, 0)
    assert host.area.summed[0].tolist() == summed


def test_giving_up_ends_the_sending(host: Host) -> None:
    host.arm(0, 0)
    host.start(0, give_up_ms=50)
    done = host.answer()
    assert done["sent"] == len(host.more_frames(0.3))
    assert 0 < done["sent"] < CHUNKS
    host.arm(1, 1)
    host.start(1)
    frames = host.frames(CHUNKS)
    assert {frame.destination[0] for frame in frames} == {GROUPS[1]}


def test_an_idle_island_is_done_at_once(host: Host) -> None:
    host.area.summed[:] = 5
    host.area.bitmaps[:] = 5
    host.arm(3, 2)
    start_ns = time.monotonic_ns() + 10**12
    done = host.ask("start", round=3, start_ns=start_ns, give_up_ns=start_ns + 10**12)
    assert (done["type"], done["round"], done["completed_ns"]) == ("done", 3, start_ns)
    assert (done["chunks"], done["expected"], done["delivered"], done["sent"]) == (CHUNKS, 0, 0, 0)
    assert done["send_lateness_us"] == {"median": 0.0, "p99": 0.0, "max": 0.0}
    assert done["send_lateness_histogram"] == []
    assert (host.area.summed[1].any(), host.area.bitmaps[1].any()) == (False, False)
    assert (host.area.summed[0].all(), host.area.bitmaps[0].all()) == (True, True)
    assert host.more_frames(0.1) == []


def test_results_that_come_before_the_start_count(host: Host) -> None:
    host.arm(2, 1)
    for chunk in range(CHUNKS):
        host.send_result(*result(2, chunk, EXPECTED))
    time.sleep(0.1)
    start_ns = host.start(2)
    host.frames(CHUNKS)
    done = host.answer()
    assert (done["delivered"], done["complete"]) == (2 * CHUNKS, CHUNKS)
    assert done["completed_ns"] < start_ns
    # The own sending is part of the round: nobody else could be complete without it.
    assert done["sent"] == CHUNKS


def test_work_out_of_turn_is_an_error(host: Host) -> None:
    host.arm(2, 1)
    answer = host.ask("start", round=3, start_ns=0, give_up_ns=0)
    assert answer == {"type": "error", "message": "data plane: round 3 was started without being armed"}
    assert host.process.wait(timeout=10) == 1


def test_it_ends_when_the_run_is_gone(host: Host) -> None:
    host.arm(2, 1)
    host.start(2)
    host.channel.close()
    assert host.process.wait(timeout=10) == 0
