"""Speed and memory of `testbed analyze`, beside tshark and Scapy's reader on the same capture.

PYTHONPATH=. python tests/bench/bench_analyze.py [--frames 1000000] [--seconds-for-scapy 20]
"""

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
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
    """One island's stream along a chain of links, each seen at both ends, with losses and a little time between."""
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
    packets = -(-frames * 21 // (points * 20))  # some are lost
    chance = np.random.default_rng(seed)
    alive = np.cumprod(chance.random((packets, points)) >= np.where(np.arange(points) % 2, LOSS, 0), axis=1, dtype=bool)
    packet, point = np.nonzero(alive)
    time_ns = START_NS + packet * (10**9 // PACKETS_PER_S) + point * 10_000_000
    order = np.argsort(time_ns, kind="stable")
    packet, point, time_ns = packet[order], point[order], time_ns[order]
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


def timed(command: list[str]) -> tuple[float, float]:
    """Wall time in seconds and memory in MB of a program."""
    began = time.monotonic()
    # The kernel counts this process's own memory at the start as the program's; it is small.
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    return time.monotonic() - began, usage.ru_maxrss / 1024


def scapy_rate(path: Path, at_most_s: float) -> float:
    """Frames per second of Scapy's reader with our layer, over as much of the capture as that time allows."""
    began, count = time.monotonic(), 0
    with PcapReader(str(path)) as reader:
        for packet in reader:
            count += layers.TB in packet
            if count % 1000 == 0 and time.monotonic() - began > at_most_s:
                break
    return count / (time.monotonic() - began)


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
        print(f"at least {arguments.frames} frames, {path.stat().st_size / 1e6:.0f} MB")
        ours_s, ours_mb = timed([sys.executable, "-P", "-m", "testbed", "analyze", "--json", str(path)])
        print(f"testbed analyze:   {ours_s:6.2f} s, {arguments.frames / ours_s:10.0f} frames/s, {ours_mb:.0f} MB")
        if shutil.which("tshark"):
            fields = ("frame.time_epoch", "ip.src", "ip.dst", "udp.dstport", "udp.payload")
            command = ["tshark", "-r", str(path), "-T", "fields"]
            theirs_s, theirs_mb = timed([*command, *(word for each in fields for word in ("-e", each))])
            rate = arguments.frames / theirs_s
            print(f"tshark -T fields:  {theirs_s:6.2f} s, {rate:10.0f} frames/s, {theirs_mb:.0f} MB")
        rate = scapy_rate(path, arguments.seconds_for_scapy)
        print(f"Scapy's reader:    {arguments.frames / rate:6.2f} s, {rate:10.0f} frames/s")


if __name__ == "__main__":
    main()
