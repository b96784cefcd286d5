"""A data plane in a namespace of its own: what it sends, takes in and reports."""

import os
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from agents.sending import send_times_ns
from aggregator.wire.packet import (
    HEADER_BYTES,
    Kind,
    frame_bytes,
    parse_packet,
)
from tests.netns.agents.host_rig import (
    CHUNKS,
    EPOCH,
    EXPECTED,
    GROUPS,
    HOST,
    JOB,
    MILLISECOND,
    Host,
    bypassed,
    chunk_slice,
    expected_sums,
    result,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for network namespaces")


def test_says_who_it_is_and_ends_when_told(host: Host) -> None:
    assert host.hello["type"] == "hello"
    assert host.hello["pid"] == host.process.pid
    assert host.hello["receive_buffer_bytes"] >= 1 << 20
    if host.hello["realtime"]:
        assert os.sched_getscheduler(host.process.pid) == os.SCHED_FIFO
    host.channel.send("stop")
    assert host.process.wait(timeout=10) == 0


def processor_s(pid: int) -> float:
    """What a process has used of processors so far."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_sleeps_while_nothing_is_due(host: Host) -> None:
    """At its priority nothing else would run."""
    before_s = processor_s(host.process.pid)
    time.sleep(0.5)
    host.arm(0, phase=0)
    time.sleep(0.5)
    assert processor_s(host.process.pid) - before_s < 0.3


def test_a_probe_goes_to_each_group_of_the_epoch_once(host: Host) -> None:
    before = time.monotonic_ns()
    assert host.ask("probe", epoch=EPOCH, probe=4) == {"type": "probed", "probe": 4, "sent": 2}
    after = time.monotonic_ns()
    frames = host.frames(2)
    assert [frame.destination for frame in frames] == [(group, 47000) for group in GROUPS]
    for frame, group in zip(frames, GROUPS, strict=True):
        header = parse_packet(memoryview(frame.datagram))
        assert (header.kind, header.chunk, header.epoch, header.job) == (Kind.PROBE, 4, EPOCH, JOB)
        assert socket.inet_ntoa(header.number.to_bytes(4, "big")) == group
        low, high = np.frombuffer(frame.datagram[HEADER_BYTES:], "<u4").tolist()
        assert before <= (high << 32 | low) <= after
    assert host.more_frames(0.1) == []


def test_a_round_is_sent_whole_to_its_group_at_its_rate(host: Host) -> None:
    wire_bytes = [frame_bytes(chunk_slice(chunk).stop - chunk_slice(chunk).start) for chunk in range(CHUNKS)]
    host.arm(5, 0)
    start_ns = host.start(5)
    frames = host.frames(CHUNKS)
    assert {frame.destination for frame in frames} == {(GROUPS[0], 47000)}
    assert {(frame.source, frame.ttl) for frame in frames} == {(HOST, 32)}
    assert [frame.wire_bytes for frame in frames] == wire_bytes
    for chunk, frame in enumerate(frames):
        header = parse_packet(memoryview(frame.datagram))
        assert (header.kind, header.source, header.bitmap, header.contributors) == (Kind.CONTRIBUTION, 0, 1, 1)
        assert (header.job, header.epoch, header.round, header.shard) == (JOB, EPOCH, 5, 0)
        assert (header.chunk, header.number) == (chunk, chunk)
        values = np.frombuffer(frame.datagram[HEADER_BYTES:], "<i4")
        assert values.tolist() == host.area.sent[1, chunk_slice(chunk)].tolist()
    due = send_times_ns(wire_bytes, start_ns + 20 * MILLISECOND, 100 * MILLISECOND)
    late = np.array([frame.arrival_ns for frame in frames]) - due
    assert late.min() > -1 * MILLISECOND  # the two clocks are compared after the fact
    assert np.median(late) < 5 * MILLISECOND
    for chunk in range(CHUNKS):
        host.send_result(*result(5, chunk, EXPECTED))
    done = host.answer()
    assert (done["sent"], done["send_retries"]) == (CHUNKS, 0)
    lateness = done["send_lateness_us"]
    assert 0 <= lateness["median"] <= lateness["p99"] <= lateness["max"]
    assert lateness["median"] < 5000
    assert host.more_frames(0.1) == []


def test_the_round_is_done_when_the_last_result_is_in(host: Host) -> None:
    """Out of order, twice, in parts, overlapping, bypassed, of other rounds, damaged: each is told apart."""
    host.arm(8, 1)
    start_ns = host.start(8)
    host.frames(CHUNKS)
    host.send_result(*result(8, 4, EXPECTED))
    host.send_result(*result(8, 4, EXPECTED))  # a duplicate
    host.send_result(*result(8, 0, 0b0010))
    host.send_result(*result(8, 0, EXPECTED))  # overlaps
    host.send_result(*bypassed(8, 0, 2))
    host.send_result(*bypassed(8, 0, 2))  # a duplicate
    host.send_result(*result(7, 1, EXPECTED))  # late
    host.send_result(*result(9, 1, EXPECTED))  # refused: of no round yet
    host.edge.sendto(b"not a packet", (HOST, 47001))  # refused
    host.send_result(*result(8, 1, 0b0100))
    host.send_result(*result(8, 1, 0b0010))
    host.send_result(*result(8, 2, EXPECTED))
    time.sleep(0.1)
    host.channel.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        host.channel.receive()  # chunk 3 is missing
    host.channel.socket.settimeout(20)
    before = time.monotonic_ns()
    host.send_result(*result(8, 3, EXPECTED))
    done = host.answer()
    assert before <= done.pop("completed_ns") <= time.monotonic_ns()
    assert done.pop("send_lateness_us")["max"] >= 0
    waits = done.pop("receive_wait_us")
    assert 0 <= waits["median"] <= waits["p99"] <= waits["max"] < (time.monotonic_ns() - start_ns) / 1e3
    assert sum(frames for _, frames in done.pop("send_lateness_histogram")) == CHUNKS
    assert done == {
        "type": "done",
        "round": 8,
        "chunks": CHUNKS,
        "expected": 2 * CHUNKS,
        "delivered": 2 * CHUNKS,
        "complete": 3,
        "partial": 3,
        "bypassed": 1,
        "duplicates": 2,
        "overlaps": 1,
        "late": 1,
        "fetched": 0,
        "repaired": 0,
        "repair": {},
        "refused": 2,
        "socket_overflows": 0,
        "sent": CHUNKS,
        "send_retries": 0,
    }
    assert start_ns < before
    assert host.area.summed[0].tolist() == expected_sums()
    assert host.area.bitmaps[0].tolist() == [EXPECTED] * CHUNKS
    assert not host.area.summed[1].any()


def test_a_round_that_lacks_results_is_given_up_in_time_and_left_alone_then(host: Host) -> None:
    host.arm(0, 0)
    start_ns = host.start(0, give_up_ms=300)
    host.frames(CHUNKS)
    host.send_result(*result(0, 1, EXPECTED))
    host.send_result(*result(0, 2, 0b0010))
    done = host.answer()
    told_ns = time.monotonic_ns()
    assert start_ns + 300 * MILLISECOND <= told_ns < start_ns + 5000 * MILLISECOND
    assert (done["expected"], done["delivered"], done["complete"], done["partial"]) == (2 * CHUNKS, 3, 1, 1)
    assert start_ns < done["completed_ns"] < start_ns + 300 * MILLISECOND
    assert host.area.bitmaps[0].tolist() == [0, EXPECTED, 0b0010, 0, 0]
    summed = host.area.summed[0].tolist()
    host.send_result(*result(0, 3, EXPECTED))
    host.arm(1, 2)
    host.start(1)
    after = host.answer()
    assert (after["round"], after["late"], after["complete"]) == (1, 1, 0)
    assert host.area.summed[0].tolist() == summed


def test_giving_up_ends_the_sending(host: Host) -> None:
    host.arm(0, 0)
    host.start(0, give_up_ms=50)
    done = host.answer()
    assert done["sent"] == len(host.more_frames(0.3))
    assert 0 < done["sent"] < CHUNKS
    host.arm(1, 1)
    host.start(1)
    frames = host.frames(CHUNKS)
    assert {frame.destination[0] for frame in frames} == {GROUPS[1]}


def test_an_idle_island_is_done_at_once(host: Host) -> None:
    host.area.summed[:] = 5
    host.area.bitmaps[:] = 5
    host.arm(3, 2)
    start_ns = time.monotonic_ns() + 10**12
    done = host.ask("start", round=3, start_ns=start_ns, fetch_ns=1 << 62, give_up_ns=start_ns + 10**12)
    assert (done["type"], done["round"], done["completed_ns"]) == ("done", 3, start_ns)
    assert (done["chunks"], done["expected"], done["delivered"], done["sent"]) == (CHUNKS, 0, 0, 0)
    assert done["send_lateness_us"] == done["receive_wait_us"] == {"median": 0.0, "p99": 0.0, "max": 0.0}
    assert done["send_lateness_histogram"] == []
    assert (host.area.summed[1].any(), host.area.bitmaps[1].any()) == (False, False)
    assert (host.area.summed[0].all(), host.area.bitmaps[0].all()) == (True, True)
    assert host.more_frames(0.1) == []


def test_a_host_that_was_held_up_says_so_and_its_round_ended_with_the_last_arrival(host: Host) -> None:
    host.arm(8, 1)
    host.start(8)
    host.frames(CHUNKS)
    for chunk in range(CHUNKS - 1):
        host.send_result(*result(8, chunk, EXPECTED))
    time.sleep(0.05)
    os.kill(host.process.pid, signal.SIGSTOP)
    before = time.monotonic_ns()
    host.send_result(*result(8, CHUNKS - 1, EXPECTED))
    after = time.monotonic_ns()
    time.sleep(0.2)
    os.kill(host.process.pid, signal.SIGCONT)
    done = host.answer()
    assert before <= done["completed_ns"] <= after + MILLISECOND
    assert 199_000 <= done["receive_wait_us"]["max"] <= (time.monotonic_ns() - before) / 1e3
    assert done["receive_wait_us"]["median"] < 50_000


def test_results_that_come_before_the_start_count(host: Host) -> None:
    host.arm(2, 1)
    for chunk in range(CHUNKS):
        host.send_result(*result(2, chunk, EXPECTED))
    time.sleep(0.1)
    start_ns = host.start(2)
    host.frames(CHUNKS)
    done = host.answer()
    assert (done["delivered"], done["complete"]) == (2 * CHUNKS, CHUNKS)
    assert done["completed_ns"] < start_ns
    # The own sending is part of the round: nobody else could be complete without it.
    assert done["sent"] == CHUNKS


def test_work_out_of_turn_is_an_error(host: Host) -> None:
    host.arm(2, 1)
    answer = host.ask("start", round=3, start_ns=0, fetch_ns=0, give_up_ns=0)
    assert answer == {"type": "error", "message": "data plane: round 3 was started without being armed"}
    assert host.process.wait(timeout=10) == 1


def test_it_ends_when_the_run_is_gone(host: Host) -> None:
    host.arm(2, 1)
    host.start(2)
    host.channel.close()
    assert host.process.wait(timeout=10) == 0
