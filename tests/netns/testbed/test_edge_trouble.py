"""Edges in trouble, in the main job: killed, with an engine that fails, with too little memory, under attack."""

import csv
import ctypes
import os
import shutil
import socket
import struct
import subprocess
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.wire.packet import CONTRIBUTION_PORT, HEADER_BYTES, VALUE_BYTES, Header, Kind, write_packet
from testbed.network import naming
from testbed.topology.load import load_topology
from tests.netns.testbed.background import Running, kill_when_reached, processes_of, running
from tests.netns.testbed.command import run_json

ROOT = Path(__file__).parents[3]
NATIVE = ROOT / "aggregator" / "engines" / "native"
FAILING = ROOT / "tests" / "netns" / "aggregator" / "failing_engine.c"
VALUES, VALUES_PER_CHUNK, CHUNKS = 418_018, 2227, 188
ISLANDS = [island.id for island in load_topology("nine-city").islands]


def test_killed_edge_loses_its_round_only(tmp_path: Path) -> None:
    with running(tmp_path / "run", "--rounds", "6") as run:
        run.wait_for("round 2/6")
        edge = processes_of(run, "aggregator.edge")[0]
        kill_when_reached(edge, 4 * CHUNKS)
        code, summary = run.finish()
    [restart] = run.events("restart")
    assert restart["how"] == "signal 9"
    assert restart["outage_s"] < 5
    assert code == 1
    rounds = run.events("round")
    expected = 72 * CHUNKS
    delivered = [sum(report["delivered"] for report in event["done"].values()) for event in rounds]
    hit = [number for number, count in enumerate(delivered) if count < expected]
    assert len(hit) == 1
    assert len(rounds) == 6
    assert all(event["exact"] for event in rounds)
    assert all(event["digests_equal"] for number, event in enumerate(rounds) if number not in hit)
    assert summary["contributions"]["lost"] == 6 * expected - sum(delivered)
    assert summary["edge_restarts"] == 1
    assert any(f"{restart['process']} ended (signal 9)" in warning for warning in summary["warnings"])


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_engine_that_fails_in_the_middle_of_a_round_loses_nothing(tmp_path: Path) -> None:
    objects = []
    for source in (*NATIVE.glob("*.c"), FAILING):
        objects.append(tmp_path / f"{source.stem}.o")
        renamed = ["-Dtb_submit=real_submit"] if source.stem == "contributions" else []
        command = ["gcc", "-std=c11", "-O2", "-D_GNU_SOURCE", "-fPIC", *renamed, "-c", source, "-o", objects[-1]]
        subprocess.run(command, check=True, timeout=60)
    library = tmp_path / "fails.so"
    subprocess.run(["gcc", "-shared", *objects, "-o", library], check=True, timeout=60)
    finished = run_json(tmp_path / "run", "--workload", "synthetic", "--rounds", "2", "--engine", str(library))
    assert finished.code == 0, finished.errors
    summary = finished.document
    expected = 2 * 72 * CHUNKS
    assert summary["contributions"] == {"sent": expected, "delivered": expected, "lost": 0, "repaired": 0}
    assert summary["exact"] is True
    assert summary["digests_equal"] is True
    assert summary["results"]["bypassed"] > 72 * CHUNKS
    for island in ISLANDS:
        assert any(f"the engine of edge {island} failed" in warning for warning in summary["warnings"])


def test_memory_below_the_plan_makes_collisions_and_the_run_says_so(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    finished = run_json(run_dir, "--workload", "synthetic", "--rounds", "2", "--edge-memory-gb", "0.1")
    assert finished.code == 0, finished.errors
    summary = finished.document
    assert summary["contributions"]["lost"] == 0
    assert summary["exact"] is True
    memory = summary["memory"]
    assert memory["floor_used"] == 1
    assert 0 < memory["collisions"] == summary["results"]["bypassed"]
    assert any("too few slots" in warning for warning in summary["warnings"])
    with (run_dir / "memory.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["island"] for row in rows} == set(ISLANDS)
    peaks = {island: max(float(row["memory_gb"]) for row in rows if row["island"] == island) for island in ISLANDS}
    for island, peak in peaks.items():
        assert peak == pytest.approx(memory["islands"][island]["measured_peak_gb"], abs=1e-5)
        # Every round ends with its slots given back.
        last = [row for row in rows if row["island"] == island][-1]
        assert int(last["slots"]) == 0


def test_contributions_pass_through_while_the_engine_loads(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    options = ("--rounds", "2", "--engine-load-time-s", "1000", "--policy", "triangles", "--memory-gb", "0")
    finished = run_json(run_dir, "--workload", "synthetic", *options)
    assert finished.code == 0, finished.errors
    summary = finished.document
    everything = 2 * 18 * CHUNKS
    assert summary["contributions"]["delivered"] == everything
    assert summary["results"] == {"complete": 0, "partial": 0, "bypassed": everything}
    assert summary["exact"] is True
    assert any("engines were loading" in warning for warning in summary["warnings"])


def test_tagged_packets_are_exact_and_all_taken(tmp_path: Path) -> None:
    options = ("--rounds", "2", "--tags", "--policy", "triangles", "--memory-gb", "0", "--deadline", "adaptive")
    finished = run_json(tmp_path / "run", "--workload", "synthetic", *options)
    assert finished.code == 0, finished.errors
    assert finished.document["contributions"]["lost"] == 0
    assert finished.document["exact"] is True


def test_f32_says_that_it_depends_on_the_order(tmp_path: Path) -> None:
    finished = run_json(tmp_path / "run", "--workload", "synthetic", "--rounds", "2", "--number-format", "f32")
    assert finished.code == 0, finished.errors
    summary = finished.document
    assert summary["exact"] is None
    assert summary["contributions"]["lost"] == 0
    assert summary["values"] == {"saturated": 0, "non_finite": 0, "denormal": 0}
    assert any("f32: sums depend on the order of arrival" in warning for warning in summary["warnings"])


class Attacker:
    """Sends frames with any source from the router of an island to its edge."""

    def __init__(self, run: Running, island: str):
        self._job = zlib.crc32(run.run_id.encode())
        [ready] = run.events("multicast_ready")
        path = next(path for path in ready["paths"] if path["receiver"] == island)
        self._group = socket.inet_aton(path["group"])
        self.source_id = ISLANDS.index(path["source"])
        self._source = socket.inet_aton(naming.host_address(self.source_id))
        [shell] = processes_of(run, f"mininet:{island}")
        # What is opened meanwhile belongs to the router's namespace.
        with open("/proc/self/ns/net") as home, open(f"/proc/{shell}/ns/net") as there:
            _setns(there.fileno())
            try:
                self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
                self._socket.bind((naming.ROUTER_TO_EDGE, 0))
            finally:
                _setns(home.fileno())
        self._memory = memoryview(bytearray(9000))

    def datagram(self, **fields: Any) -> bytes:
        last = CHUNKS - 1
        given: dict[str, Any] = {
            "kind": Kind.CONTRIBUTION,
            "source": self.source_id,
            "job": self._job,
            "epoch": 0,
            "round": 0,
            "shard": 0,
            "chunk": last,
            "value_count": VALUES - last * VALUES_PER_CHUNK,
            **fields,
        }
        header = Header(**{"bitmap": 1 << given["source"], **given})
        size = write_packet(self._memory, header, bytes(VALUE_BYTES * header.value_count))
        return bytes(self._memory[:size])

    def frame(self, datagram: bytes) -> bytes:
        """The datagram on its way to the group, from the contributor's address."""
        ethernet = b"\x01\x00\x5e" + bytes([self._group[1] & 0x7F]) + self._group[2:] + b"\x02\0\0\0\0\1\x08\0"
        length = 28 + len(datagram)
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, length, 0, 0, 16, 17, 0, self._source, self._group)
        total = sum(struct.unpack("!10H", ip))
        total = (total & 0xFFFF) + (total >> 16)
        total = (total & 0xFFFF) + (total >> 16)
        udp = struct.pack("!HHHH", 40000, CONTRIBUTION_PORT, 8 + len(datagram), 0)
        return ethernet + ip[:10] + struct.pack("!H", total ^ 0xFFFF) + ip[12:] + udp + datagram

    def send(self, frames: list[bytes]) -> None:
        # Above the training and whatever else there is, below the run's own processes.
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        try:
            for frame in frames:
                self._socket.send(frame)
        finally:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))

    def close(self) -> None:
        self._socket.close()


def _setns(fd: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000):
        raise OSError(ctypes.get_errno(), "setns")


def test_a_hundred_thousand_hostile_datagrams_change_nothing(tmp_path: Path) -> None:
    flood = 100_000
    rng = np.random.default_rng(4)
    wanted: Counter[str] = Counter()
    with running(tmp_path / "run", "--rounds", "12", "--strict") as run:
        run.wait_for("round  1/12")
        attacker = Attacker(run, "nyc")
        stranger = (attacker.source_id + 1) % len(ISLANDS)
        whole = attacker.datagram()
        small = {
            "spoofed": ("source", attacker.datagram(source=stranger, value_count=10)),
            "oversized": ("length", attacker.datagram(value_count=2000)),
            "truncated": ("length", whole[:500]),
            "short": ("length", whole[: HEADER_BYTES - 1]),
            "of another run": ("epoch", attacker.datagram(job=1, value_count=10)),
            "sum": ("source", attacker.datagram(bitmap=0b111, value_count=10)),
        }
        frames = {name: attacker.frame(datagram) for name, (_, datagram) in small.items()}
        for name, datagram in (("replayed", whole), ("of another epoch", attacker.datagram(epoch=9, round=5))):
            small[name] = ("epoch", datagram)
            frames[name] = attacker.frame(datagram)
        fuzzed = []
        for _ in range(1000):
            cut = bytearray(whole[:200])
            cut[int(rng.integers(0, HEADER_BYTES))] ^= 1 + int(rng.integers(0, 255))
            fuzzed.append(attacker.frame(bytes(cut)))
        # Whole chunks are few, since the flood is one of packets and not of bytes.
        shares = {name: 0.001 if len(frame) > 2000 else 0.08 for name, frame in frames.items()}
        names = rng.choice([*shares, "fuzzed"], flood, p=[*shares.values(), 1 - sum(shares.values())]).tolist()
        wanted.update(small[name][0] if name in small else name for name in names)
        attacker.send([frames.get(name) or fuzzed[i % len(fuzzed)] for i, name in enumerate(names)])
        attacker.close()
        code, summary = run.finish()
    refused: Counter[str] = Counter()
    for event in run.events("round"):
        refused.update(event["retired"]["nyc"]["refused"])
    assert sum(refused.values()) == flood == sum(wanted.values())
    # A fuzzed one has a wrong length, or is refused for its first wrong field.
    damaged = sum(refused[reason] - wanted[reason] for reason in ("length", "magic", "version", "kind"))
    assert damaged == wanted["fuzzed"]
    assert (refused["source"], refused["epoch"]) == (wanted["source"], wanted["epoch"])
    assert code == 0, summary["warnings"]
    assert summary["exact"] is True
    assert summary["contributions"]["lost"] == 0
