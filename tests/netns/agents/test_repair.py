"""What a data plane asks for when packets are missing, what it makes of the answers, and what it answers itself."""

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aggregator.wire.packet import FLAG_RETRANSMITTED, HEADER_BYTES, Header, Kind, parse_packet
from tests.netns.agents.host_rig import (
    CHUNKS,
    EPOCH,
    EXPECTED,
    HOLD_OFF_NS,
    HOST,
    ISLAND,
    JOB,
    PEER,
    PER_CHUNK,
    Host,
    bypassed,
    chunk_slice,
    expected_sums,
    result,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for network namespaces")
STREAM, FIRST = 99, 2**32 - 2  # numbers wrap
IDLE = 2
NOTHING = np.zeros(0, np.int32)
RECEIVES = 1


@pytest.fixture
def fetching_host(namespaces: tuple[str, str], tmp_path: Path) -> Iterator[Host]:
    running = Host(namespaces, tmp_path, fetch=True)
    yield running
    running.end()


def numbered(packet: tuple[Header, np.ndarray], place: int, **fields: int) -> tuple[Header, np.ndarray]:
    header, values = packet
    return replace(header, stream=STREAM, number=(FIRST + place) % 2**32, trailing_edge=FIRST, **fields), values


def heard(sock: socket.socket) -> tuple[Header, str, int]:
    """The next packet at one of the rig's sockets, from where, and when."""
    datagram, (sender, _) = sock.recvfrom(10_000)
    return parse_packet(memoryview(datagram)), sender, time.monotonic_ns()


def asked_of(sock: socket.socket, numbers: set[int]) -> tuple[Header, int, int]:
    """The first request, when it came, and when the one came by which all these numbers, or chunks, were asked for."""
    first, sender, first_ns = last, _, last_ns = heard(sock)
    seen: set[int] = set()
    while True:
        assert sender == HOST
        assert (last.source, last.job, last.epoch, last.round) == (ISLAND, JOB, EPOCH, 4)
        assert last.contributors == last.bitmap.bit_count()
        base = last.number if last.kind is Kind.NACK else last.chunk
        seen |= {(base + bit) % 2**32 for bit in range(64) if last.bitmap >> bit & 1}
        assert seen <= numbers
        if seen == numbers:
            return first, first_ns, last_ns
        last, sender, last_ns = heard(sock)


def test_gap_is_asked_for_after_the_hold_off_and_again_until_it_comes(host: Host) -> None:
    host.arm(4, RECEIVES)
    host.start(4)
    results = [numbered(result(4, chunk, EXPECTED), chunk) for chunk in range(CHUNKS)]
    began_ns = time.monotonic_ns()
    for chunk in (2, 4):
        host.send_result(*results[chunk])
    # The first two and the fourth: the stream has begun at its trailing edge.
    missing = {FIRST, FIRST + 1, (FIRST + 3) % 2**32}
    asked, first_ns, last_ns = asked_of(host.edge, missing)
    assert first_ns - began_ns >= HOLD_OFF_NS
    assert (asked.kind, asked.stream, asked.number) == (Kind.NACK, STREAM, FIRST)
    _, again_ns, _ = asked_of(host.edge, missing)
    assert again_ns - last_ns >= HOLD_OFF_NS
    for chunk in (0, 1, 3):
        header, values = results[chunk]
        host.send_result(replace(header, flags=FLAG_RETRANSMITTED), values)
    done = host.answer()
    assert done["type"] == "done"
    assert done["delivered"] == done["expected"] == 2 * CHUNKS
    assert done["repaired"] == 2 * 3
    assert done["repair"]["missed"] == 3
    assert done["repair"]["requests"] >= 2
    assert host.area.summed[0].tolist() == expected_sums()


def test_heartbeat_tells_of_a_lost_tail_and_gone_ends_the_asking(host: Host) -> None:
    host.arm(4, RECEIVES)
    host.start(4, give_up_ms=1500)
    for chunk in range(CHUNKS - 2):
        host.send_result(*numbered(result(4, chunk, EXPECTED), chunk))
    beat = Header(Kind.HEARTBEAT, ISLAND, JOB, EPOCH, 4, 0, 0, 0, stream=STREAM)
    beat = replace(beat, number=FIRST + CHUNKS - 1 - 2**32, trailing_edge=FIRST, contributors=0)
    host.send(host.edge, beat, NOTHING)
    asked, _, _ = heard(host.edge)
    assert (asked.number, asked.bitmap) == (FIRST + CHUNKS - 2 - 2**32, 0b11)
    header, values = numbered(result(4, CHUNKS - 2, EXPECTED), CHUNKS - 2, flags=FLAG_RETRANSMITTED)
    host.send_result(header, values)
    gone = replace(asked, kind=Kind.GONE, bitmap=0b10, contributors=1, trailing_edge=FIRST)
    host.send(host.edge, gone, NOTHING)
    host.edge.settimeout(0.7)
    with pytest.raises(TimeoutError):
        # One that was under way may come, and no more.
        [heard(host.edge) for _ in range(3)]
    done = host.answer()
    assert (done["delivered"], done["repaired"], done["repair"]["gone"]) == (2 * (CHUNKS - 1), 2, 1)


def test_what_others_send_to_the_port_of_results_is_refused(host: Host) -> None:
    host.arm(4, RECEIVES)
    host.start(4, give_up_ms=300)
    host.send(host.peer, *result(4, 0, EXPECTED))
    host.send(host.peer, *bypassed(4, 1, 1))
    header, values = bypassed(4, 1, 2)
    host.send(host.peer, replace(header, flags=FLAG_RETRANSMITTED), values)  # in the name of another island
    beat = Header(Kind.HEARTBEAT, ISLAND, JOB, EPOCH, 4, 0, 0, 0, number=50, stream=STREAM, contributors=0)
    host.send(host.peer, beat, NOTHING)
    header, values = bypassed(4, 2, 1)
    host.send(host.peer, replace(header, flags=FLAG_RETRANSMITTED), values)  # what it may send
    done = host.answer()
    assert (done["refused"], done["delivered"], done["fetched"], done["repaired"]) == (4, 1, 1, 1)


def test_what_a_sum_lacks_is_fetched_from_its_source(fetching_host: Host) -> None:
    host = fetching_host
    host.arm(4, RECEIVES)
    host.start(4)
    for chunk in range(CHUNKS):
        host.send_result(*numbered(result(4, chunk, 0b100 if chunk in (1, 3) else EXPECTED), chunk))
    asked, _, _ = asked_of(host.peer, {1, 3})
    assert (asked.kind, asked.chunk, asked.stream) == (Kind.FETCH, 1, 0)
    for chunk in (1, 3):
        header, values = bypassed(4, chunk, 1)
        host.send(host.peer, replace(header, flags=FLAG_RETRANSMITTED, number=chunk), values)
    done = host.answer()
    assert (done["delivered"], done["fetched"], done["repaired"], done["refused"]) == (2 * CHUNKS, 2, 2, 0)
    assert done["repair"]["fetches_sent"] >= 1
    assert host.area.summed[0].tolist() == expected_sums()


def test_everything_is_fetched_when_the_round_should_be_over(fetching_host: Host) -> None:
    host = fetching_host
    host.arm(4, RECEIVES)
    start_ns = host.start(4, give_up_ms=900, fetch_ms=200)
    asked, _, at_ns = heard(host.peer)
    assert at_ns >= start_ns + 200_000_000
    assert (asked.chunk, asked.bitmap) == (0, 2**CHUNKS - 1)
    done = host.answer()
    assert (done["delivered"], done["expected"]) == (0, 2 * CHUNKS)


def test_other_islands_hosts_are_given_what_this_one_has_sent(host: Host) -> None:
    host.arm(4, RECEIVES)
    ask = Header(Kind.FETCH, 1, JOB, EPOCH, 4, 0, 0, 0, contributors=2, bitmap=0b10001)
    host.send(host.peer, ask, NOTHING, 47003)
    host.send(host.peer, replace(ask, source=2), NOTHING, 47003)  # not its own name
    host.send(host.peer, replace(ask, round=3), NOTHING, 47003)
    host.send(host.edge, ask, NOTHING, 47003)
    frames = [frame for frame in host.frames(2) if frame.destination == (PEER, 47001)]
    for frame, chunk in zip(frames, (0, 4), strict=True):
        header = parse_packet(memoryview(frame.datagram))
        assert (header.kind, header.flags, header.chunk, header.round) == (
            Kind.CONTRIBUTION,
            FLAG_RETRANSMITTED,
            chunk,
            4,
        )
        assert (header.source, header.bitmap, header.stream) == (ISLAND, 1 << ISLAND, 0)
        wanted = host.area.sent[0, chunk_slice(chunk)]
        assert np.frombuffer(frame.datagram[HEADER_BYTES:], "<i4").tolist() == wanted.tolist()
        assert len(wanted) <= PER_CHUNK
    host.start(4, give_up_ms=100)
    done = host.answer()
    assert done["refused"] == 3
    assert done["repair"] == {"answers": 2, "fetches": 1}
