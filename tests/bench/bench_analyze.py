"""Speed and memory of `testbed analyze`, beside tshark and Scapy's reader on the same capture.

PYTHONPATH=. python tests/bench/bench_analyze.py [--frames 1000000] [--seconds-for-scapy 20]
"""

import argparse
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from scapy.utils import PcapReader

from aggregator.wire.packet import Kind
from testbed.capture import layers, pcapng
from tests.unit.capture.frames import START_NS, frame, header

CAPTURED_BYTES = 128
PACKETS_PER_S = 2500  # of one island's stream at the main job's scale
ROUND_CHUNKS = 1880
LOSS = 0.01
SITES = ("nyc", "chi", "lax", "tyo", "hkg")
_HEAD_BYTES, _TAIL_BYTES = 28, 16
_HEADER_AT = _HEAD_BYTES + 42
_ROUND_AT, _CHUNK_AT, _NUMBER_AT = _HEADER_AT + 16, _HEADER_AT + 24, _HEADER_AT + 28


def make_capture(path: Path, frames: int, seed: int = 1) -> None:
    """One island's stream along a chain of links, each seen at both ends, with losses and a little time between.

    Exactly so many frames; the last packets' ways may be cut.
    """
    hops = [f"{a}-{b}" for a, b in pairwise(SITES)]
    blocks = [pcapng.section_header("testbed", "testbed")]
    for index, hop in enumerate(hops):
        a, b = hop.split("-")
        for here, there in ((a, b), (b, a)):
            comment = f"testbed node={here} interface=i{index} link={hop} kind=core peer={there}:i{index}"
            blocks.append(pcapng.interface_description(f"{here}:i{index}", hop, comment, CAPTURED_BYTES))
    one = header(Kind.CONTRIBUTION, 0, value_count=2000)
    data = frame(one, "10.1.0.10", "232.1.0.1")
    template = np.frombuffer(pcapng.packet(0, 0, data[:CAPTURED_BYTES], len(data), True), np.uint8)
    points = 2 * len(hops)
    packets = -(-frames * 21 // (points * 20)) + 100  # some are lost
    chance = np.random.default_rng(seed)
    alive = np.cumprod(chance.random((packets, points)) >= np.where(np.arange(points) % 2, LOSS, 0), axis=1, dtype=bool)
    packet, point = np.nonzero(alive)
    time_ns = START_NS + packet * (10**9 // PACKETS_PER_S) + point * 10_000_000
    order = np.argsort(time_ns, kind="stable")
    packet, point, time_ns = (column[order][:frames] for column in (packet, point, time_ns))
    assert len(packet) == frames
    rows = np.tile(template, (len(packet), 1))

    def put(at: int, values: np.ndarray, kind: str) -> None:  # type: ignore[type-arg]
        rows[:, at : at + 4] = values.astype(kind).view(np.uint8).reshape(-1, 4)

    put(8, point, "<u4")
    put(12, time_ns >> 32, "<u4")
    put(16, time_ns & 0xFFFFFFFF, "<u4")
    put(_ROUND_AT, packet // ROUND_CHUNKS, ">u4")
    put(_CHUNK_AT, packet % ROUND_CHUNKS, ">u4")
    put(_NUMBER_AT, packet % ROUND_CHUNKS, ">u4")
    put(template.size - 12, np.where(point % 2, 1, 2), "<u4")
    with path.open("wb") as file:
        file.write(b"".join(blocks))
        file.write(rows.tobytes())
        for interface in range(points):
            arrived = int((point == interface).sum())
            end_ns = int(time_ns[-1]) + 10**9
            file.write(pcapng.interface_statistics(pcapng.Statistics(interface, START_NS, end_ns, arrived, 0, 0)))


@dataclass(frozen=True)
class Cost:
    """What reading the capture takes: wall and processor time in seconds, memory in MB. Nan: not measured."""

    wall_s: float
    processor_s: float
    memory_mb: float = math.nan

    def show(self, name: str, frames: int) -> None:
        print(
            f"{name:18} {self.wall_s:7.2f} s, {self.processor_s:7.2f} s of a processor, "
            f"{frames / self.processor_s:9.0f} frames per second of it, {self.memory_mb:.0f} MB"
        )


def cost_of(command: list[str]) -> Cost:
    """What a program takes. It has to succeed, or to say that captures are incomplete."""
    began = time.monotonic()
    # The kernel counts this process's own memory at the start as the program's; it is small.
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, (command, status)
    return Cost(time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def cost_of_scapy(path: Path, frames: int, at_most_s: float) -> tuple[Cost, int]:
    """What Scapy's reader takes with our layer, reckoned from those it reads in that time; and how many these are."""
    began, count, used = time.monotonic(), 0, time.process_time()
    with PcapReader(str(path)) as reader:
        for packet in reader:
            count += layers.TB in packet
            if count % 1000 == 0 and time.monotonic() - began > at_most_s:
                break
    share = count / frames
    return Cost((time.monotonic() - began) / share, (time.process_time() - used) / share), count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seconds-for-scapy", type=float, default=20.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "bench.pcapng"
        # Elsewhere, for what that takes.
        maker = multiprocessing.get_context("spawn").Process(target=make_capture, args=(path, arguments.frames))
        maker.start()
        maker.join()
        print(f"{arguments.frames} frames, {path.stat().st_size / 1e6:.0f} MB")
        ours = cost_of([sys.executable, "-P", "-m", "testbed", "analyze", "--json", str(path)])
        ours.show("testbed analyze", arguments.frames)
        if shutil.which("tshark"):
            fields = ("frame.time_epoch", "ip.src", "ip.dst", "udp.dstport", "udp.payload")
            command = ["tshark", "-r", str(path), "-T", "fields"]
            theirs = cost_of([*command, *(word for each in fields for word in ("-e", each))])
            theirs.show("tshark -T fields", arguments.frames)
        scapy, read = cost_of_scapy(path, arguments.frames, arguments.seconds_for_scapy)
        scapy.show("Scapy's reader", arguments.frames)
        print(f"(Scapy: reckoned from its first {read} frames)")


if __name__ == "__main__":
    main()
