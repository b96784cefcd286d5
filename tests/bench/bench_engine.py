"""Speed of the engines, side by side, on one core: `PYTHONPATH=. python tests/bench/bench_engine.py`. No root needed.

1. The engine alone: nine islands' contributions from memory, no sockets. Per batch size, contributions per second and
   payload bandwidth, beside the bandwidth of copying the same payloads once (numpy's copy of int32 rows).
2. Receiving and adding: the edge's receiver and engine on a loopback socket, against a bare loop of recvmmsg that only
   reads the same packets (a C loop would be a little faster at small frames; this one makes one call per 64 packets).
"""

import argparse
import ctypes
import os
import socket
import time
from collections.abc import Callable

import numpy as np

from aggregator import sockets
from aggregator.admission import Shape
from aggregator.engine import EngineConfig, empty_headers
from aggregator.engines import engine_names, make_engine
from aggregator.receiver import BATCH, NativeReceiver, PythonReceiver, native_library
from aggregator.wire.packet import CONTRIBUTION_PORT, Header, Kind, write_packet

ISLANDS = 8
JOB = 5


def best(run: Callable[[], float], times: int = 5) -> float:
    return min(run() for _ in range(times))


def engine_alone(name: str, values: int, batch: int, chunks: int = 512) -> float:
    """Seconds per contribution."""
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
        start = time.perf_counter()
        done = 0
        for chunk, source in columns:
            count = len(chunk)
            headers.chunk[:count] = chunk
            headers.source[:count] = source
            assert engine.submit(headers, payloads, count, round_number) == count
            done += engine.poll(out, results, round_number)
        elapsed = time.perf_counter() - start
        assert done == chunks, done
        engine.drop_clique(JOB, 0, round_number)
        round_number += 1
        return elapsed

    seconds = best(run) / len(order)
    engine.close()
    return seconds


def copy_seconds(values: int) -> float:
    """Seconds to copy one payload, over the same working set as the engine's."""
    source, target = np.ones((64, values), np.int32), np.empty((64, values), np.int32)

    def run() -> float:
        start = time.perf_counter()
        for _ in range(200):
            np.copyto(target, source)
        return time.perf_counter() - start

    return best(run) / (200 * 64)


class Loopback:
    """A loopback socket that is filled with a batch at a time, so that only the receiving side is measured."""

    def __init__(self, values: int):
        self.values = values
        self.receiver = sockets.open_receiver()
        self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sender.bind(("127.0.0.1", 0))
        self.sender.connect(("127.0.0.1", CONTRIBUTION_PORT))
        self.memory = memoryview(bytearray(9000))
        self.payload = np.arange(values, dtype="<i4").tobytes()

    def fill(self, round_number: int, chunk: int, source: int, count: int) -> None:
        for i in range(count):
            header = Header(
                Kind.CONTRIBUTION, source, JOB, 0, round_number, 0, chunk + i, self.values, bitmap=1 << source
            )
            self.sender.send(self.memory[: write_packet(self.memory, header, self.payload)])

    def close(self) -> None:
        self.receiver.close()
        self.sender.close()


def bare_reader(loop: Loopback) -> Callable[[], int]:
    """One recvmmsg of up to 64 datagrams into rows like the receiver's."""
    libc = ctypes.CDLL(None, use_errno=True)
    stride = 64 + 4 * loop.values + 64
    rows = np.zeros((BATCH, stride), np.uint8)

    class Vector(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    class Message(ctypes.Structure):
        _fields_ = (
            ("name", ctypes.c_void_p),
            ("name_length", ctypes.c_uint32),
            ("vector", ctypes.c_void_p),
            ("vector_length", ctypes.c_size_t),
            ("control", ctypes.c_void_p),
            ("control_length", ctypes.c_size_t),
            ("flags", ctypes.c_int64),  # an int and the padding that ends a struct msghdr
            ("length", ctypes.c_uint32),
        )

    vectors = (Vector * BATCH)(*(Vector(rows.ctypes.data + i * stride, stride) for i in range(BATCH)))
    size = ctypes.sizeof(Vector)
    messages = (Message * BATCH)(
        *(Message(vector=ctypes.addressof(vectors) + i * size, vector_length=1) for i in range(BATCH))
    )
    fd = loop.receiver.fileno()

    def read() -> int:
        count: int = libc.recvmmsg(fd, messages, BATCH, socket.MSG_DONTWAIT, None)
        assert len(rows) == len(vectors), "kept alive, since the messages only hold addresses"
        return count

    return read


def received_and_added(name: str, receiver_name: str, values: int, batches: int = 64) -> tuple[float, float]:
    """(seconds per contribution of receiving and adding, of bare reading), measured by turns."""
    loop = Loopback(values)
    library = native_library()
    chunks = BATCH * batches // ISLANDS
    shape = Shape(JOB, {"127.0.0.1": 0}, [chunks * values], values)
    if receiver_name == "c":
        assert library is not None
        receiver: NativeReceiver | PythonReceiver = NativeReceiver(library, loop.receiver, shape)
    else:
        receiver = PythonReceiver(loop.receiver, shape)
    receiver.allow([("127.0.0.1", "127.0.0.1")])
    engine = make_engine(name)
    engine.open(EngineConfig(slots=1024, values_per_chunk=values, index_entries=8192))
    out, results = empty_headers(BATCH), np.empty((BATCH, values), np.int32)
    read = bare_reader(loop)
    added_s = read_s = float("inf")
    for round_number in range(4):
        engine.set_clique(JOB, 0, round_number, 0b11, 10**12)
        added = bare = 0.0
        for start in range(0, chunks, BATCH):
            count = min(BATCH, chunks - start)
            # All packets come from one address here, so the second contributor's are made from the first's headers.
            for source in range(2):
                loop.fill(round_number, start, 0, count)
                begin = time.perf_counter()
                got, _ = receiver.receive()
                receiver.headers.source[:got] = source
                taken = engine.submit(receiver.headers, receiver.payloads, got, round_number)
                engine.poll(out, results, round_number)
                added += time.perf_counter() - begin
                assert taken == got == count, (taken, got, receiver.refused())
                loop.fill(round_number, start, 0, count)
                begin = time.perf_counter()
                got = read()
                bare += time.perf_counter() - begin
                assert got == count, os.strerror(ctypes.get_errno())
        assert engine.drop_clique(JOB, 0, round_number).complete == chunks
        added_s, read_s = min(added_s, added / (2 * chunks)), min(read_s, bare / (2 * chunks))
    engine.close()
    loop.close()
    return added_s, read_s


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    names = [name for name in ("numpy", "native") if name in engine_names()]
    for values in (2000, 342):
        copying = copy_seconds(values)
        size = 4 * values
        print(f"payload {size} bytes: copying it {size / copying / 1e9:.1f} GB/s")
        for batch in (1, 7, 64):
            for name in names:
                seconds = engine_alone(name, values, batch)
                print(
                    f"  engine alone, {name}, batches of {batch}: {1 / seconds:,.0f} contributions/s, "
                    f"{size / seconds / 1e9:.2f} GB/s, {100 * copying / seconds:.0f} % of copying"
                )
        for name, receiver_name in (("numpy", "python"), ("native", "c")):
            if name in names:
                added, bare = received_and_added(name, receiver_name, values)
                print(
                    f"  receiving and adding, {name} with the receiver in {receiver_name}: {1e6 * added:.2f} us; "
                    f"reading alone {1e6 * bare:.2f} us: {100 * bare / added:.0f} % of its rate"
                )


if __name__ == "__main__":
    main()
