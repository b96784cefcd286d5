"""CPU time of an edge process per contribution. Run as root (it makes namespaces), from the root of the repository:

    PYTHONPATH=. python tests/bench/bench_edge.py

The contributors' frames of 9014 bytes cross a veth pair to the edge's bridge; the sums go on to a host, as in a run.
Counted is what the edge process uses on its CPU from arming to retiring, polling included. Two loads: paced (2300
contributions per second, as at an edge of nine islands in all-to-all) and as fast as one Python sender can.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "netns" / "aggregator"))

from edge_rig import CONTRIBUTORS, JOB, EdgeRig, edge_network, group_of, setup_message

from aggregator.wire.packet import CONTRIBUTION_PORT, Header, Kind, write_packet

VALUES = 2227
CHUNKS = 188
SOURCES = len(CONTRIBUTORS)


def cpu_ns(pid: int) -> int:
    """CPU time of a process so far."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def measure(rig: EdgeRig, round_number: int, pause_s: float) -> tuple[float, float]:
    """Send one round; returns (CPU µs per contribution, contributions per second)."""
    rig.ask("arm", round=round_number, epoch=0, phase=0)
    payload = np.arange(VALUES, dtype="<i4").tobytes()
    datagrams = []
    for chunk in range(CHUNKS):
        for address, contributor in CONTRIBUTORS.items():
            header = Header(
                Kind.CONTRIBUTION, contributor, JOB, 0, round_number, 0, chunk, VALUES, bitmap=1 << contributor
            )
            out = bytearray(9000)
            datagrams.append((address, bytes(out[: write_packet(memoryview(out), header, payload)])))
    pid, before, start = rig.process.pid, cpu_ns(rig.process.pid), time.monotonic()
    for i, (address, datagram) in enumerate(datagrams):
        rig.senders[address].sendto(datagram, (group_of(address), CONTRIBUTION_PORT))
        if pause_s:
            time.sleep(max(0.0, start + (i + 1) * pause_s - time.monotonic()))
    for _ in range(CHUNKS):
        rig.result()
    elapsed = time.monotonic() - start
    used = cpu_ns(pid) - before
    report = rig.ask("retire", round=round_number)
    assert report["complete"] == CHUNKS, report
    return used / 1e3 / len(datagrams), len(datagrams) / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="numpy")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    setup = setup_message(
        engine=options.engine,
        values_per_chunk=VALUES,
        shard_values=[VALUES * CHUNKS],
        slots=3600,
        line_rate_bps=1e10,
    )
    with edge_network() as spaces:
        rig = EdgeRig(*spaces, setup)
        try:
            assert rig.answer()["type"] == "hello"
            expected = sum(1 << contributor for contributor in CONTRIBUTORS.values())
            groups = [{"group": group_of(source), "source": source} for source in CONTRIBUTORS]
            rig.ask("epoch", epoch=0, phases=[{"expected": expected, "deadline_ns": 10**10}], groups=groups)
            round_number = 0
            for label, pause_s in (("paced", 1 / 2300), ("burst", 0.0)):
                for _ in range(options.rounds):
                    used_us, rate = measure(rig, round_number, pause_s)
                    print(f"{options.engine} {label}: {used_us:.1f} us CPU per contribution, {rate:.0f} per second")
                    round_number += 1
        finally:
            rig.close()


if __name__ == "__main__":
    main()
