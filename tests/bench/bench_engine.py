"""Speed of the engines, side by side, on one core: `PYTHONPATH=. python tests/bench/bench_engine.py`. No root needed.

Eight islands' contributions per key, in payloads of 8000 and 1368 bytes (frames of 9000 and 1500 bytes):

1. The engine alone, no sockets, beside copying the same payloads once (memcpy, over as much memory). `native` is called
   from C through its ABI, as the edge's loop does; and from Python, as `numpy` always is.
2. Receiving, checking (header, flow, checksum) and adding, in C, on a loopback socket, beside a bare loop of recvmmsg
   that reads the same packets into rows of the same size and does nothing with them. The two take turns. Once with 32
   sums open at a time, which stay in the cache, as the aim is meant, and once with 512, which with large payloads do
   not, as at an edge that waits for far islands.

The C part is engine_speed.c, built on the spot with gcc. Every figure is the best of several rounds.
"""

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from aggregator.engine import EngineConfig, empty_headers
from aggregator.engines import make_engine
from aggregator.engines.library_engine import native_library
from aggregator.receiver import native_library as receiver_library

ISLANDS = 8
JOB = 5
ROOT = Path(__file__).parents[2]
BATCHES = (1, 7, 64)
PAYLOADS = {2000: 80, 342: 60}
"""Values in a payload, and the share of the bare loop's rate that is aimed at, in per cent."""


def best(run: Callable[[], float], times: int = 5) -> float:
    return min(run() for _ in range(times))


def from_python(name: str, values: int, batch: int, chunks: int = 512) -> float:
    """Nanoseconds per contribution of an engine that is called from Python."""
    engine = make_engine(name)
    engine.open(EngineConfig(slots=1024, values_per_chunk=values, index_entries=8192))
    headers, out = empty_headers(batch), empty_headers(64)
    payloads = np.ones((batch, values), np.int32)
    results = np.empty((64, values), np.int32)
    order = [
        (chunk, source)
        for start in range(0, chunks, 32)
        for source in range(ISLANDS)
        for chunk in range(start, start + 32)
    ]
    parts = [order[i : i + batch] for i in range(0, len(order), batch)]
    columns = [(np.array([c for c, _ in part], np.uint32), np.array([s for _, s in part], np.uint8)) for part in parts]
    headers.job[:] = JOB
    headers.value_count[:] = values
    round_number = 0

    def run() -> float:
        nonlocal round_number
        headers.round[:] = round_number
        engine.set_clique(JOB, 0, round_number, (1 << ISLANDS) - 1, 10**12)
        start = time.perf_counter_ns()
        done = 0
        for chunk, source in columns:
            count = len(chunk)
            headers.chunk[:count] = chunk
            headers.source[:count] = source
            assert engine.submit(headers, payloads, count, round_number) == count
            done += engine.poll(out, results, round_number)
        elapsed = time.perf_counter_ns() - start
        assert done == chunks, done
        engine.drop_clique(JOB, 0, round_number)
        round_number += 1
        return elapsed / len(order)

    used = best(run)
    engine.close()
    return used


def from_c(program: Path, values: int) -> dict[str, float]:
    """What engine_speed.c measures, in nanoseconds per contribution."""
    command = [str(program), str(native_library()), receiver_library_path(), str(values)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return {name: float(figure) for name, figure in (line.split() for line in done.stdout.splitlines())}


def receiver_library_path() -> str:
    library = receiver_library()
    if library is None:
        raise SystemExit("the native parts are not built here; install the project with a C compiler")
    return str(library._name)


def build(directory: Path) -> Path:
    program = directory / "engine_speed"
    sources = [ROOT / "tests" / "bench" / "engine_speed.c", ROOT / "aggregator" / "wire" / "native" / "crc32.c"]
    command = ["gcc", "-std=c11", "-O2", "-D_GNU_SOURCE", "-o", str(program), *map(str, sources), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return program


def report(program: Path, values: int, wanted: int) -> None:
    figures = from_c(program, values)
    size, copying = 4 * values, figures["copy"]
    print(f"payload of {size} bytes: copying it {copying:.0f} ns, {size / copying:.1f} GB/s")
    for batch in BATCHES:
        numpy_ns, python_ns = from_python("numpy", values, batch), from_python("native", values, batch)
        native_ns = figures[f"engine-{batch}"]
        print(
            f"  engine alone, batches of {batch}: native {native_ns:.0f} ns, {size / native_ns:.1f} GB/s, "
            f"{100 * copying / native_ns:.0f} % of copying (aim 60 %); numpy {numpy_ns:.0f} ns, "
            f"native {numpy_ns / native_ns:.1f} times as fast; native from Python {python_ns:.0f} ns, "
            f"{numpy_ns / python_ns:.1f} times"
        )
    bare, receiving, adding = figures["bare"], figures["receive"], figures["add"]
    print(
        f"  receiving, checking and adding: {receiving + adding:.0f} ns; reading alone {bare:.0f} ns: "
        f"{100 * bare / (receiving + adding):.0f} % of its rate (aim {wanted} %)\n"
        f"    of it: adding {adding:.0f} ns, header and checksum {figures['check']:.0f} ns, "
        f"asking the kernel for both addresses and the rest {receiving - figures['check'] - bare:.0f} ns"
    )
    bare, whole = figures["bare-open"], figures["receive-open"] + figures["add-open"]
    print(
        f"  the same with 512 sums open: {whole:.0f} ns, of it adding {figures['add-open']:.0f} ns; "
        f"reading alone {bare:.0f} ns: {100 * bare / whole:.0f} % of its rate"
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as scratch:
        program = build(Path(scratch))
        for values, wanted in PAYLOADS.items():
            report(program, values, wanted)


if __name__ == "__main__":
    main()
