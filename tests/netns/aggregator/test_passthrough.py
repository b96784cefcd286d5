"""An engine that fails in the middle of a round: the edge passes the streams through, and the run can tell."""

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edge_rig import (
    CONTRIBUTORS,
    HOST,
    SO_RCVBUFFORCE,
    EdgeRig,
    Namespace,
    group_of,
    root_refusal,
    setup_message,
)
from numpy.typing import NDArray

from aggregator import service
from aggregator.edge import Edge, handle, parse_setup
from aggregator.engine import HeaderBatch
from aggregator.engines.numpy_engine import NumpyEngine
from aggregator.engines.passthrough import PassthroughEngine
from aggregator.wire.packet import (
    CONTRIBUTION_PORT,
    FLAG_BYPASSED,
    HEADER_BYTES,
    RESULT_PORT,
    Header,
    Kind,
    Reason,
    parse_packet,
    write_packet,
)

pytestmark = pytest.mark.skipif(bool(root_refusal()), reason=root_refusal())
A, B, C = CONTRIBUTORS
ALL = 0b100110
NATIVE = Path(__file__).parents[3] / "aggregator" / "engines" / "native"
VALUES = 50
CHUNKS = 90


class FailsAfter(NumpyEngine):
    """Adds `left` contributions, the last ones of them in a batch that it does not finish."""

    left = 100

    def submit(self, headers: HeaderBatch, payloads: NDArray[np.int32], count: int, now_ns: int) -> int:
        done = super().submit(headers, payloads, min(count, self.left), now_ns)
        self.left -= done
        if self.left == 0:
            raise RuntimeError("card gone")
        return done


class Dies(FailsAfter):
    """As before, and then it gives nothing out any more."""

    def poll(self, headers: HeaderBatch, payloads: NDArray[np.int32], now_ns: int) -> int:
        if self.left == 0:
            raise RuntimeError("no answer")
        return super().poll(headers, payloads, now_ns)


Exchange = Callable[[type[NumpyEngine]], tuple[list[tuple[Header, np.ndarray]], dict[str, Any]]]


def values_of(source: int, chunk: int) -> np.ndarray:
    return np.random.default_rng([source, chunk]).integers(-(2**28), 2**28, VALUES, np.int32)


@pytest.fixture
def exchange(network: tuple[Namespace, Namespace, Namespace], monkeypatch: pytest.MonkeyPatch) -> Exchange:
    """Runs one round through an edge in this process; returns what the host got, and the edge's report."""

    def run(engine: type[NumpyEngine]) -> tuple[list[tuple[Header, np.ndarray]], dict[str, Any]]:
        wan, edge_space, lan = network
        monkeypatch.setattr(service, "make_engine", lambda name: engine())
        setup = setup_message(values_per_chunk=VALUES, shard_values=[VALUES * CHUNKS], slots=200)
        with edge_space.entered():
            edge = Edge(parse_setup(setup))
        host = lan.udp_socket()
        host.setsockopt(1, SO_RCVBUFFORCE, 4 << 20)
        host.bind((HOST, RESULT_PORT))
        host.setblocking(False)
        groups = [{"group": group_of(source), "source": source} for source in CONTRIBUTORS]
        handle(
            edge, {"type": "epoch", "epoch": 0, "phases": [{"expected": ALL, "deadline_ns": 10**12}], "groups": groups}
        )
        handle(edge, {"type": "arm", "round": 0, "epoch": 0, "phase": 0})
        memory = memoryview(bytearray(1000))
        for source, contributor in CONTRIBUTORS.items():
            with wan.udp_socket() as sender:
                sender.bind((source, 0))
                sender.setsockopt(0, 32, bytes(int(part) for part in source.split(".")))  # IP_MULTICAST_IF
                for chunk in range(CHUNKS):
                    header = Header(Kind.CONTRIBUTION, contributor, 77, 0, 0, 0, chunk, VALUES, bitmap=1 << contributor)
                    size = write_packet(memory, header, values_of(contributor, chunk).tobytes())
                    sender.sendto(memory[:size], (group_of(source), CONTRIBUTION_PORT))
        for _ in range(1000):
            if edge.can_receive():
                edge.receive()
            edge.serve(time.monotonic_ns())
        report = handle(edge, {"type": "retire", "round": 0})
        got = []
        while True:
            try:
                datagram = memoryview(host.recv(1000))
            except BlockingIOError:
                break
            got.append((parse_packet(datagram), np.frombuffer(datagram[HEADER_BYTES:], "<i4")))
        host.close()
        edge.close()
        return got, report

    return run


def merged(got: list[tuple[Header, np.ndarray]]) -> list[int]:
    """What a host makes of it: the bitmap of each chunk, sums checked; what overlaps is dropped whole."""
    bitmaps = [0] * CHUNKS
    for header, total in got:
        if header.bitmap & bitmaps[header.chunk]:
            continue
        bitmaps[header.chunk] |= header.bitmap
        members = [source for source in range(64) if header.bitmap >> source & 1]
        assert (total == sum(values_of(source, header.chunk) for source in members)).all()
    return bitmaps


def test_engine_that_fails_in_the_middle_of_a_round_loses_nothing(exchange: Exchange) -> None:
    got, report = exchange(FailsAfter)
    assert merged(got) == [ALL] * CHUNKS
    assert report["engine_failure"] == "RuntimeError: card gone"
    # The 28 that were left of the failing batch of 64 pass through as well as the 36 that were added with it.
    assert report["passthrough"] == 3 * CHUNKS - 64
    kinds = [header.kind for header, _ in got]
    assert kinds == [Kind.RESULT] * CHUNKS + [Kind.CONTRIBUTION] * (3 * CHUNKS - 64)
    assert {header.reason for header, _ in got[:CHUNKS]} == {Reason.TIMEOUT}
    assert all(header.flags == FLAG_BYPASSED for header, _ in got[CHUNKS:])


def test_engine_that_dies_loses_only_what_it_held(exchange: Exchange) -> None:
    got, report = exchange(Dies)
    assert report["engine_failure"] == "RuntimeError: card gone"
    bitmaps = merged(got)
    # 64 chunks of the first contributor lay in its slots; the batch that it failed with was kept.
    assert bitmaps == [ALL & ~0b10] * 64 + [ALL] * (CHUNKS - 64)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_library_that_stops_in_the_middle_of_a_round_loses_nothing(
    network: tuple[Namespace, Namespace, Namespace], tmp_path: Path
) -> None:
    objects = []
    sources = [*NATIVE.glob("*.c"), Path(__file__).parent / "failing_engine.c"]
    for source in sources:
        objects.append(tmp_path / f"{source.stem}.o")
        renamed = ["-Dtb_submit=real_submit"] if source.stem == "contributions" else []
        command = ["gcc", "-std=c11", "-O2", "-D_GNU_SOURCE", "-fPIC", *renamed, "-c", source, "-o", objects[-1]]
        subprocess.run(command, check=True, timeout=60)
    library = tmp_path / "fails.so"
    subprocess.run(["gcc", "-shared", *objects, "-o", library], check=True, timeout=60)
    setup = setup_message(values_per_chunk=VALUES, shard_values=[VALUES * CHUNKS], slots=200, engine=str(library))
    rig = EdgeRig(*network, setup)
    try:
        assert rig.answer()["type"] == "hello"
        rig.begin()
        for source, contributor in CONTRIBUTORS.items():
            for chunk in range(CHUNKS):
                rig.contribute(source, values_of(contributor, chunk), chunk=chunk)
        got: list[tuple[Header, np.ndarray]] = []
        while len(got) < 3 * CHUNKS and merged(got) != [ALL] * CHUNKS:
            got.append(rig.result())
        report = rig.ask("retire", round=0)
        assert report["engine_failure"].startswith("EngineError: took a part of a batch")
        assert report["passthrough"] > 0
        assert sum(header.kind is Kind.RESULT for header, _ in got) >= CHUNKS
    finally:
        rig.close()


def test_chosen_passthrough_forwards_everything_once(exchange: Exchange) -> None:
    got, report = exchange(PassthroughEngine)
    assert merged(got) == [ALL] * CHUNKS
    assert len(got) == 3 * CHUNKS
    assert (report["passthrough"], report["engine_failure"]) == (3 * CHUNKS, "")
