"""Last-hop repair at the edge: what a host asks for it gets again, within bounds, and from nobody else's buffer."""

import select
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from edge_rig import (
    CONTRIBUTORS,
    EDGE,
    ISLAND_ID,
    JOB,
    OTHER_HOST,
    STRANGER,
    EdgeRig,
    Namespace,
    edge_network,
    root_refusal,
    setup_message,
)

from aggregator.engines import engine_names
from aggregator.wire.packet import (
    FLAG_BYPASSED,
    FLAG_RETRANSMITTED,
    HEADER_BYTES,
    REPAIR_PORT,
    Header,
    Kind,
    frame_bytes,
    parse_packet,
    write_header,
)

pytestmark = pytest.mark.skipif(bool(root_refusal()), reason=root_refusal())
A, B, C = CONTRIBUTORS
VALUES, CHUNKS = 500, 100
FIRST = 2**32 - 30  # numbers wrap
LONG_NS = 60_000_000_000
StartEdge = Callable[..., EdgeRig]
QUIET_S = 0.2


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[Namespace, Namespace, Namespace]]:
    with edge_network() as spaces:
        yield spaces


@pytest.fixture(params=[name for name in ("native", "numpy") if name in engine_names()])
def start_edge(request: pytest.FixtureRequest, network: tuple[Namespace, Namespace, Namespace]) -> Iterator[StartEdge]:
    rigs: list[EdgeRig] = []

    def start(**fields: Any) -> EdgeRig:
        given = {
            "engine": request.param,
            "values_per_chunk": VALUES,
            "shard_values": [VALUES * CHUNKS],
            "resend_window_ns": LONG_NS,
            "resend_bytes": 1 << 20,
            "heartbeat_ns": LONG_NS,
            "first_number": FIRST,
            **fields,
        }
        rigs.append(EdgeRig(*network, setup_message(**given)))
        assert rigs[-1].answer()["type"] == "hello"
        rigs[-1].begin(expected=0b110)
        return rigs[-1]

    yield start
    for rig in rigs:
        rig.close()


def send_chunks(rig: EdgeRig, count: int, first: int = 0) -> list[tuple[Header, bytes]]:
    """Have `count` results sent to the host; returns them."""
    sent = []
    for chunk in range(first, first + count):
        for source in (A, B):
            rig.contribute(source, np.full(VALUES, chunk), chunk=chunk)
        sent.append(take(rig))
    return sent


def take(rig: EdgeRig) -> tuple[Header, bytes]:
    datagram = memoryview(rig.host.recv(10_000))
    return parse_packet(datagram), bytes(datagram[HEADER_BYTES:])


def nack(rig: EdgeRig, stream: int, base: int, bitmap: int = 1, **fields: Any) -> bytes:
    given: dict[str, Any] = {
        "kind": Kind.NACK,
        "source": ISLAND_ID,
        "job": JOB,
        "epoch": 7,
        "round": 8,
        "shard": 0,
        "chunk": 0,
        "value_count": 0,
        "number": base % 2**32,
        "bitmap": bitmap,
        "contributors": bitmap.bit_count(),
        "stream": stream,
        **fields,
    }
    size = write_header(rig.memory, Header(**given))
    return bytes(rig.memory[:size])


def ask(rig: EdgeRig, *arguments: Any, **fields: Any) -> None:
    rig.host.sendto(nack(rig, *arguments, **fields), (EDGE, REPAIR_PORT))


def settle() -> None:
    """Longer than the shortest time between two repairs of one packet."""
    time.sleep(0.02)


def nothing_more(rig: EdgeRig) -> None:
    rig.host.settimeout(0.1)
    with pytest.raises(TimeoutError):
        take(rig)
    rig.host.settimeout(5)


def test_what_is_asked_for_comes_again_as_it_was(start_edge: StartEdge) -> None:
    rig = start_edge()
    sent = send_chunks(rig, 60)
    rig.contribute(C, np.full(VALUES, 9), chunk=0)  # of no clique: refused
    rig.contribute(A, np.full(VALUES, 5), chunk=70)
    assert [header.number for header, _ in sent] == [(FIRST + i) % 2**32 for i in range(60)]
    assert {header.trailing_edge for header, _ in sent} == {FIRST}
    stream = sent[0][0].stream
    assert stream != 0
    settle()
    ask(rig, stream, FIRST + 20, 1 | 1 << 15 | 1 << 39)
    for i in (20, 35, 59):
        header, payload = take(rig)
        assert header == replace(sent[i][0], flags=FLAG_RETRANSMITTED)
        assert payload == sent[i][1]
    ask(rig, stream, FIRST + 60, 0b1)  # not sent yet
    ask(rig, stream, FIRST - 3, 0b1011)  # two that never were, and the first
    (gone, _), (first, _) = sorted((take(rig), take(rig)), key=lambda packet: -packet[0].kind)
    assert (gone.kind, gone.bitmap, gone.number, gone.contributors) == (Kind.GONE, 0b11, FIRST - 3, 2)
    assert (gone.trailing_edge, gone.stream, gone.epoch, gone.round) == (FIRST, stream, 7, 8)
    assert first.number == FIRST
    nothing_more(rig)
    report = rig.ask("retire", round=0)["repair"]
    assert report == {
        "nacks": 3,
        "repairs": 4,
        "repair_bytes": 4 * frame_bytes(VALUES),
        "repairs_refused": 1,
        "gone": 2,
        "gone_answers": 1,
    }


def test_bypassed_contributions_are_numbered_and_repaired(start_edge: StartEdge) -> None:
    rig = start_edge(slots=1)
    rig.contribute(A, np.full(VALUES, 1), chunk=0)
    rig.contribute(A, np.full(VALUES, 2), chunk=1, number=4711)
    rig.contribute(A, np.full(VALUES, 3), chunk=2)
    sent = [take(rig) for _ in range(2)]
    assert [(header.kind, header.flags, header.number) for header, _ in sent] == [
        (Kind.CONTRIBUTION, FLAG_BYPASSED, FIRST),
        (Kind.CONTRIBUTION, FLAG_BYPASSED, FIRST + 1),
    ]
    settle()
    ask(rig, sent[0][0].stream, FIRST)
    header, payload = take(rig)
    assert header == replace(sent[0][0], flags=FLAG_BYPASSED | FLAG_RETRANSMITTED)
    assert payload == sent[0][1]


def test_buffer_is_bounded_by_bytes(start_edge: StartEdge) -> None:
    rig = start_edge(resend_bytes=22_000)  # ten packets of 2064 bytes, in rows of 2176
    sent = send_chunks(rig, 40)
    stream = sent[0][0].stream
    assert sent[39][0].trailing_edge == (FIRST + 29) % 2**32
    settle()
    ask(rig, stream, FIRST + 28, 0b111)
    answers = {header.kind: header for header, _ in (take(rig), take(rig))}
    assert answers[Kind.GONE].bitmap == 0b11
    assert answers[Kind.RESULT].number == (FIRST + 30) % 2**32
    assert answers[Kind.RESULT].trailing_edge == answers[Kind.GONE].trailing_edge == (FIRST + 30) % 2**32


def test_buffer_is_bounded_by_time(start_edge: StartEdge) -> None:
    rig = start_edge(resend_window_ns=100_000_000)
    sent = send_chunks(rig, 2)
    time.sleep(0.15)
    ask(rig, sent[0][0].stream, FIRST, 0b11)
    header, _ = take(rig)
    assert (header.kind, header.bitmap, header.trailing_edge) == (Kind.GONE, 0b11, FIRST + 2)


def test_heartbeats_tell_where_a_quiet_stream_stands(start_edge: StartEdge) -> None:
    rig = start_edge(heartbeat_ns=20_000_000, resend_window_ns=700_000_000)
    rig.contribute(A, np.full(VALUES, 1), chunk=0, epoch=0)
    rig.contribute(B, np.full(VALUES, 1), chunk=0, epoch=0)
    last, _ = take(rig)
    began = time.monotonic()
    beats = []
    rig.host.settimeout(0.5)
    while True:
        try:
            beats.append(take(rig)[0])
        except TimeoutError:
            break
    assert {beat.kind for beat in beats} == {Kind.HEARTBEAT}
    assert {(beat.number, beat.stream) for beat in beats} == {(last.number, last.stream)}
    assert {(beat.source, beat.job, beat.epoch, beat.round) for beat in beats} == {(ISLAND_ID, JOB, 0, 0)}
    # After 20, 40, 80, 160, 320, 480, 640 ms, and a last one: on a busy machine fewer.
    assert 4 <= len(beats) <= 8
    assert time.monotonic() - began < 3


def test_only_the_host_itself_may_ask(start_edge: StartEdge) -> None:
    rig = start_edge()
    stream = send_chunks(rig, 4)[0][0].stream
    settle()
    ask(rig, stream ^ 1, FIRST)
    ask(rig, stream, FIRST, source=ISLAND_ID + 1)
    ask(rig, stream, FIRST, job=JOB + 1)
    ask(rig, stream, FIRST, shard=1)
    ask(rig, stream, FIRST, kind=Kind.FETCH)
    ask(rig, stream, FIRST, bitmap=2)
    ask(rig, stream, FIRST, contributors=2)
    ask(rig, stream, FIRST, value_count=16)
    rig.host.sendto(b"TB", (EDGE, REPAIR_PORT))
    rig.host.sendto(nack(rig, stream, FIRST)[:-1] + b"\x00", (EDGE, REPAIR_PORT))
    rig.host.sendto(nack(rig, stream, FIRST) + bytes(200), (EDGE, REPAIR_PORT))
    rig.senders[STRANGER].sendto(nack(rig, stream, FIRST), (EDGE, REPAIR_PORT))
    other = rig.lan.udp_socket()
    other.bind((OTHER_HOST, 0))
    other.sendto(nack(rig, stream, FIRST), (EDGE, REPAIR_PORT))
    other.close()
    nothing_more(rig)
    report = rig.ask("retire", round=0)
    assert report["repair"] == {}
    assert report["refused"] == {"checksum": 1, "epoch": 1, "kind": 1, "length": 5, "source": 4, "stream": 1}


def test_flood_of_requests_stays_within_its_budget(start_edge: StartEdge) -> None:
    rate_bps = 100e6
    rig = start_edge(line_rate_bps=rate_bps)
    stream = send_chunks(rig, CHUNKS - 1)[0][0].stream
    settle()
    request = nack(rig, stream, FIRST + 30, 2**64 - 1)
    began = time.monotonic()
    flood, repairs = 10_000, 0
    for i in range(flood):
        rig.host.sendto(request, (EDGE, REPAIR_PORT))
        # Its own buffer would overflow meanwhile.
        while select.select([rig.host], [], [], max(0.0, began + i / 10_000 - time.monotonic()))[0]:
            repairs += take(rig)[0].flags == FLAG_RETRANSMITTED
    # Requests that still wait at the edge are answered as well.
    while select.select([rig.host], [], [], QUIET_S)[0]:
        repairs += take(rig)[0].flags == FLAG_RETRANSMITTED
    took = time.monotonic() - began - QUIET_S
    # Its own results still get through.
    rig.contribute(A, np.full(VALUES, 1), chunk=CHUNKS - 1)
    rig.contribute(B, np.full(VALUES, 1), chunk=CHUNKS - 1)
    header, _ = take(rig)
    assert (header.chunk, header.flags) == (CHUNKS - 1, 0)
    report = rig.ask("retire", round=0)
    repair = report["repair"]
    assert report["refused"] == {}
    assert repair["repairs"] == repairs
    # One request per 5 ms on average, 32 at once; half of the line, and what may be sent ahead of it.
    assert repair["nacks"] <= took / 0.005 + 33
    assert repair["nacks"] + repair["nacks_limited"] <= flood
    assert repair["repairs"] >= 64
    allowed_bytes = (took + 0.05) * rate_bps / 8 / 2 + 64 * frame_bytes(VALUES)
    assert repair["repair_bytes"] <= allowed_bytes


def test_stream_of_a_new_process_is_another(start_edge: StartEdge) -> None:
    streams = set()
    for _ in range(2):
        rig = start_edge()
        streams.add(send_chunks(rig, 1)[0][0].stream)
        rig.close()
    assert len(streams) == 2
