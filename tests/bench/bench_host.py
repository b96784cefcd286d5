"""CPU time of a host's data plane per result. Run as root (it makes namespaces), from the root of the repository:

    PYTHONPATH=. python tests/bench/bench_host.py [--against DIRECTORY]

Results cross a veth pair to the data plane in a namespace of its own, as in a run: paced, so that it wakes for each
(300 per second, as at a host of nine islands in all-to-all, and 3000), and as fast as one Python sender can. Counted is
what it uses on its CPU from the first result to the report of the round, waking up included. DIRECTORY: another
checkout of the repository, built, which is measured by turns with this one.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agents.exchange_area import map_exchange_area
from aggregator.wire.control import Channel, pair
from aggregator.wire.packet import HEADER_BYTES, RESULT_PORT, VALUE_BYTES, Header, Kind, Reason, write_packet
from tests.netns.agents.host_rig import EDGE, HOST, inside, two_namespaces

HERE = Path(__file__).parents[2]
JOB, ISLAND, EPOCH = 77, 0, 0
EXPECTED = 0b110
CHUNKS = 188
SIZES = {"8 KB": 2227, "1.4 KB": 334}
LOADS = {"300/s": 1 / 300, "3000/s": 1 / 3000, "burst": 0.0}
TURNS = 3
WAIT_S = 20.0


def cpu_ns(pid: int) -> int:
    """CPU time of a process so far, all threads."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks)


class DataPlane:
    """A data plane that sends nothing and expects two contributors, from one checkout."""

    def __init__(self, checkout: Path, namespace: str, area: Path, values_per_chunk: int) -> None:
        self.values_per_chunk = values_per_chunk
        values = CHUNKS * values_per_chunk
        map_exchange_area(area, 2, values, values_per_chunk, create=True)
        ours, theirs = pair()
        ours.socket.settimeout(WAIT_S)
        self.channel: Channel = ours
        command = ["nsenter", f"--net=/run/netns/{namespace}", sys.executable, "-P", "-m", "agents.dataplane"]
        self.process = subprocess.Popen(
            [*command, "--control-fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout)},
        )
        theirs.close()
        hello = self.ask(
            "setup",
            island="nyc",
            island_id=ISLAND,
            shard=0,
            job=JOB,
            values_per_chunk=values_per_chunk,
            shard_values=[values],
            address=HOST,
            host_addresses=[HOST],
            interface="up0",
            most_catch_up_ns=20_000_000,
            exchange_area=str(area),
            islands=3,
            depth=2,
            number_format=0,
            tag_key="",
            repair={"edge_address": EDGE, "peers": {}, "fetch": False, "hold_off_ns": 10_000_000, "uplink_bps": 1e8},
        )
        assert hello["type"] == "hello", hello
        phase = {"group": None, "source": None, "destinations": [], "offset_ns": 0, "duration_ns": 0}
        self.ask("epoch", epoch=EPOCH, phases=[{**phase, "expected": EXPECTED}])
        self.number = 0

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        self.channel.send(kind, **fields)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        message = self.channel.receive()
        assert message is not None
        return message

    def close(self) -> None:
        self.channel.close()
        self.process.wait(timeout=WAIT_S)

    def datagrams(self, round_number: int) -> list[bytes]:
        made = []
        payload = bytes(VALUE_BYTES * self.values_per_chunk)
        for chunk in range(CHUNKS):
            number = round_number * CHUNKS + chunk
            header = Header(Kind.RESULT, ISLAND, JOB, EPOCH, round_number, 0, chunk, self.values_per_chunk, number)
            header.contributors, header.bitmap, header.reason = EXPECTED.bit_count(), EXPECTED, Reason.COMPLETE
            header.stream, header.trailing_edge = 5, max(number - 64, 0)
            out = bytearray(HEADER_BYTES + len(payload))
            write_packet(memoryview(out), header, payload)
            made.append(bytes(out))
        return made

    def round(self, sender: socket.socket, pause_s: float) -> float:
        """Send a round; returns CPU µs per result."""
        number, self.number = self.number, self.number + 1
        datagrams = self.datagrams(number)
        self.ask("arm", round=number, epoch=EPOCH, phase=0)
        start_ns = time.monotonic_ns()
        never_ns = start_ns + 10**12
        self.channel.send("start", round=number, start_ns=start_ns, fetch_ns=never_ns, give_up_ns=never_ns)
        time.sleep(0.02)
        before, start = cpu_ns(self.process.pid), time.monotonic()
        for i, datagram in enumerate(datagrams):
            sender.sendto(datagram, (HOST, RESULT_PORT))
            if pause_s:
                time.sleep(max(0.0, start + (i + 1) * pause_s - time.monotonic()))
        done = self.answer()
        used = cpu_ns(self.process.pid) - before
        assert (done["complete"], done["delivered"]) == (CHUNKS, CHUNKS * EXPECTED.bit_count()), done
        assert done["repair"] == {}, done
        return used / 1e3 / CHUNKS


def measure(
    sender: socket.socket,
    namespace: str,
    directory: Path,
    size: str,
    values: int,
    checkouts: list[Path],
    rounds: int,
) -> None:
    """Print what results of one size cost under each load, in each checkout."""
    used_us: dict[tuple[str, Path], list[float]] = {(load, checkout): [] for load in LOADS for checkout in checkouts}
    for turn in range(TURNS):
        for checkout in checkouts:
            # One at a time: two would have the same address.
            data_plane = DataPlane(checkout, namespace, directory / f"area-{values}-{turn}-{checkout == HERE}", values)
            try:
                data_plane.round(sender, LOADS["burst"])  # to warm up
                for load, pause_s in LOADS.items():
                    used_us[load, checkout] += [data_plane.round(sender, pause_s) for _ in range(rounds)]
            finally:
                data_plane.close()
    for load in LOADS:
        each = [used_us[load, checkout] for checkout in checkouts]
        figures = [f"{statistics.median(used):6.1f} ({min(used):.1f} to {max(used):.1f})" for used in each]
        print(f"results of {size}, {load:>6}: {'; against '.join(figures)} us of CPU per result", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="DIRECTORY")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    checkouts = [HERE] if options.against is None else [HERE, options.against.resolve()]
    with two_namespaces() as (host, edge), tempfile.TemporaryDirectory() as directory:
        with inside(edge):
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.bind((EDGE, 0))
        with sender:
            for size, values in SIZES.items():
                measure(sender, host, Path(directory), size, values, checkouts, options.rounds)


if __name__ == "__main__":
    main()
