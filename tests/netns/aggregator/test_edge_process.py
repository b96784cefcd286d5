"""The edge process end to end: packets in, results out, run control, in network namespaces of its own."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from edge_rig import (
    CONTRIBUTORS,
    EDGE,
    HOST,
    ISLAND_ID,
    OTHER_HOST,
    STRANGER,
    EdgeRig,
    Namespace,
    group_of,
    root_refusal,
    setup_message,
)

from aggregator.engines import engine_names
from aggregator.wire.packet import (
    FLAG_BYPASSED,
    HEADER_BYTES,
    RESULT_PORT,
    Kind,
    Reason,
    parse_packet,
    write_packet,
    write_probe,
)

pytestmark = pytest.mark.skipif(bool(root_refusal()), reason=root_refusal())
A, B, C = CONTRIBUTORS
ALL = 0b100110
StartEdge = Callable[..., EdgeRig]


@pytest.fixture(params=[name for name in ("native", "numpy") if name in engine_names()])
def start_edge(request: pytest.FixtureRequest, network: tuple[Namespace, Namespace, Namespace]) -> Iterator[StartEdge]:
    rigs: list[EdgeRig] = []

    def start(**fields: Any) -> EdgeRig:
        rigs.append(EdgeRig(*network, setup_message(engine=request.param, **fields)))
        hello = rigs[-1].answer()
        assert hello["type"] == "hello"
        assert hello["receive_buffer_bytes"] == 16 << 20
        return rigs[-1]

    yield start
    for rig in rigs:
        rig.close()


def values(seed: int, count: int = 2000) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**29), 2**29, count, dtype=np.int32)


def test_sums_are_exact_and_numbered(start_edge: StartEdge) -> None:
    rig = start_edge()
    rig.begin()
    rng = np.random.default_rng(1)
    chunks = {chunk: [values(10 * chunk + i, 500 if chunk == 10 else 2000) for i in range(3)] for chunk in range(11)}
    for i, source in enumerate(CONTRIBUTORS):
        for chunk in rng.permutation(11).tolist():
            rig.contribute(source, chunks[chunk][i], chunk=chunk)
    seen = set()
    for number in range(11):
        header, total = rig.result()
        seen.add(header.chunk)
        assert (header.kind, header.reason, header.flags) == (Kind.RESULT, Reason.COMPLETE, 0)
        assert (header.source, header.bitmap, header.contributors) == (ISLAND_ID, ALL, 3)
        assert (header.number, header.trailing_edge) == (number, number)
        assert (total == sum(chunks[header.chunk])).all()
    assert seen == set(range(11))
    report = rig.ask("retire", round=0)
    occupancy = [slots for _, slots in report.pop("occupancy")]
    assert (max(occupancy), occupancy[-1]) == (11, 0)
    assert report.pop("longest_wait_ns") > 0
    assert report == {
        "type": "retired",
        "round": 0,
        "complete": 11,
        "timeout": 0,
        "collision": 0,
        "passthrough": 0,
        "repair": {},
        "engine_failure": "",
        "engine_loading": False,
        "late": 0,
        "duplicate": 0,
        "high_water_slots": 11,
        "refused": {},
        "socket_overflows": 0,
    }


def test_missing_contribution_leads_to_a_partial_result_at_the_deadline(start_edge: StartEdge) -> None:
    rig = start_edge()
    rig.begin(deadline_ns=200_000_000)
    start = time.monotonic()
    rig.contribute(A, values(1))
    rig.contribute(C, values(2))
    header, total = rig.result()
    assert time.monotonic() - start >= 0.2
    assert (header.reason, header.bitmap, header.contributors) == (Reason.TIMEOUT, 0b100010, 2)
    assert (total == values(1) + values(2)).all()
    rig.contribute(B, values(3))
    header, total = rig.result()
    assert (header.kind, header.flags, header.source, header.bitmap) == (Kind.CONTRIBUTION, FLAG_BYPASSED, 2, 0b100)
    assert (total == values(3)).all()
    report = rig.ask("retire", round=0)
    assert (report["timeout"], report["late"], report["complete"]) == (1, 1, 0)


def test_newcomer_bypasses_when_the_slots_are_taken(start_edge: StartEdge) -> None:
    rig = start_edge(slots=1)
    rig.begin()
    rig.contribute(A, values(1), chunk=0)
    rig.contribute(A, values(2), chunk=1, number=4711)
    header, total = rig.result()
    assert (header.kind, header.flags, header.chunk, header.number) == (Kind.CONTRIBUTION, FLAG_BYPASSED, 1, 0)
    assert (total == values(2)).all()
    report = rig.ask("retire", round=0)
    assert (report["collision"], report["high_water_slots"]) == (1, 1)


def test_hostile_packets_are_refused_and_counted_and_change_no_sum(start_edge: StartEdge) -> None:
    rig = start_edge()
    rig.begin(expected=0b110)
    good = rig.memory[: write_packet(rig.memory, rig.header(A), values(1).tobytes())]
    copy = bytes(good)
    rig.contribute(A, values(9), source=2)  # B's id from A's address
    rig.contribute(A, values(9), bitmap=0b110)  # claims to be a sum
    rig.contribute(A, values(9), to=EDGE)  # unicast, past the group
    rig.contribute(A, values(9), to=group_of(B))  # the kernel's source filter drops it
    rig.contribute(STRANGER, values(9), to=group_of(A), source=1)  # so it does this one
    rig.contribute(C, values(9))  # of the flows, but not of this round's clique
    rig.contribute(A, values(9), job=1)
    rig.contribute(A, values(9), round=1)
    rig.contribute(A, values(9), chunk=11)
    rig.contribute(A, values(9), shard=1)
    rig.contribute(A, values(9, 1999))
    rig.contribute(A, values(9), kind=Kind.RESULT)
    rig.contribute(A, values(9), flags=FLAG_BYPASSED)
    rig.send_raw(A, copy[:63])
    rig.send_raw(A, copy[:-4])
    rig.send_raw(A, b"XX" + copy[2:])
    rig.send_raw(A, copy[:2] + b"\x09" + copy[3:])
    rig.send_raw(A, copy[:3] + b"\x63" + copy[4:])
    rig.send_raw(A, copy[:-1] + bytes([copy[-1] ^ 1]))
    rig.contribute(A, values(1))
    rig.contribute(A, values(1))
    rig.contribute(B, values(2))
    header, total = rig.result()
    assert (header.bitmap, header.reason) == (0b110, Reason.COMPLETE)
    assert (total == values(1) + values(2)).all()
    report = rig.ask("retire", round=0)
    assert report["duplicate"] == 1
    assert report["refused"] == {
        "checksum": 1,
        "epoch": 2,
        "group": 1,
        "kind": 3,
        "length": 5,
        "magic": 1,
        "source": 3,
        "version": 1,
    }


def test_flood_of_hostile_packets_changes_no_sum_and_is_counted_whole(start_edge: StartEdge) -> None:
    rig = start_edge()
    rig.begin(expected=0b110)
    good = bytes(rig.memory[: write_packet(rig.memory, rig.header(A), values(1).tobytes())])
    rng = np.random.default_rng(8)
    flood, chunks = 100_000, 10
    for i in range(flood):
        if i % (flood // chunks) == 0:
            rig.contribute(A, values(i), chunk=i // (flood // chunks))
        if i % (flood // chunks) == 5000:
            rig.contribute(B, values(i), chunk=i // (flood // chunks))
        # Cut short, so that the flood is one of packets and not of bytes; one byte of the header is not what it was.
        hostile = bytearray(good[: int(rng.integers(0, 200))])
        if hostile:
            hostile[int(rng.integers(0, min(64, len(hostile))))] ^= 1 + int(rng.integers(0, 255))
        rig.send_raw(A, bytes(hostile))
    # The last chunk, of 500 values, comes behind the flood: with its sum all of the flood has been looked at.
    for source in (A, B):
        rig.contribute(source, values(7, 500), chunk=chunks)
    for _ in range(chunks):
        header, total = rig.result()
        step = header.chunk * (flood // chunks)
        assert (header.bitmap, header.reason) == (0b110, Reason.COMPLETE)
        assert (total == values(step) + values(step + 5000)).all()
    assert rig.result()[0].chunk == chunks
    report = rig.ask("retire", round=0)
    assert report["socket_overflows"] == 0
    assert sum(report["refused"].values()) == flood
    assert report["complete"] == chunks + 1


def test_packets_without_the_runs_tag_are_refused_and_results_have_it(start_edge: StartEdge) -> None:
    key = bytes(range(16))
    rig = start_edge(tag_key=key.hex(), slots=1)
    rig.begin(expected=0b110)

    def send(source: str, chunk: int, seed: int, tagged_with: bytes | None) -> None:
        header = rig.header(source, chunk=chunk)
        size = write_packet(rig.memory, header, values(seed).astype("<i4").tobytes(), tagged_with)
        rig.send_raw(source, rig.memory[:size])

    send(A, 0, 9, None)
    send(A, 0, 9, bytes(16))
    send(A, 0, 1, key)
    send(A, 1, 3, key)  # there is but one slot
    send(B, 0, 2, key)
    kinds = []
    for _ in range(2):
        datagram = memoryview(rig.host.recv(10_000))
        kinds.append(parse_packet(datagram, key).kind)
        if kinds[-1] is Kind.RESULT:
            assert (np.frombuffer(datagram[HEADER_BYTES:], "<i4") == values(1) + values(2)).all()
    assert sorted(kinds) == [Kind.CONTRIBUTION, Kind.RESULT]
    assert rig.ask("retire", round=0)["refused"] == {"tag": 2}


def test_f32_is_summed_as_floats_and_other_formats_are_refused(start_edge: StartEdge) -> None:
    rig = start_edge(number_format=1)
    rig.begin(expected=0b110)
    floats = [np.random.default_rng(seed).standard_normal(2000).astype(np.float32) for seed in (1, 2)]
    rig.contribute(A, floats[0].view(np.int32))
    rig.contribute(A, floats[0].view(np.int32), number_format=1)
    rig.contribute(B, floats[1].view(np.int32), number_format=1)
    header, total = rig.result()
    assert (header.number_format, header.bitmap) == (1, 0b110)
    assert (total.view(np.float32) == floats[0] + floats[1]).all()
    assert rig.ask("retire", round=0)["refused"] == {"kind": 1}


def test_contributions_pass_through_while_the_engine_loads(start_edge: StartEdge) -> None:
    rig = start_edge(engine_load_s=1e6)
    rig.begin(expected=0b110)
    for source in (A, B):
        rig.contribute(source, values(1))
        assert rig.result()[0].kind is Kind.CONTRIBUTION
    report = rig.ask("retire", round=0)
    assert (report["passthrough"], report["engine_loading"], report["collision"]) == (2, True, 0)


def test_adaptive_deadline_follows_the_spread(start_edge: StartEdge) -> None:
    rig = start_edge(deadline_policy="adaptive")
    rig.begin(expected=0b110)
    rig.contribute(A, values(1))
    rig.contribute(B, values(1))
    assert rig.result()[0].reason is Reason.COMPLETE
    waited_ns = rig.ask("retire", round=0)["longest_wait_ns"]
    rig.ask("arm", round=1, epoch=0, phase=0)
    start = time.monotonic()
    rig.contribute(A, values(1), round=1)
    assert rig.result()[0].reason is Reason.TIMEOUT
    # 50 ms and half as much again as was waited for, and not the minute that was planned.
    assert 0.05 <= time.monotonic() - start < 3
    assert waited_ns < 10**9


def test_probes_are_reported_and_not_summed(start_edge: StartEdge) -> None:
    rig = start_edge()
    rig.begin()
    group = group_of(A)
    number = int.from_bytes(bytes(int(part) for part in group.split(".")), "big")
    header = rig.header(A, kind=Kind.PROBE, chunk=31, number=number, value_count=2)
    size = write_probe(rig.memory, header, 123_456_789_012_345)
    before = time.monotonic_ns()
    rig.send_raw(A, rig.memory[:size])
    deadline = time.monotonic() + 5
    arrivals: list[Any] = []
    while not arrivals and time.monotonic() < deadline:
        arrivals = rig.ask("probe_report", probe=31)["arrivals"]
    [(seen_group, sent_ns, arrival_ns)] = arrivals
    assert (seen_group, sent_ns) == (group, 123_456_789_012_345)
    assert before <= arrival_ns <= time.monotonic_ns()
    assert rig.ask("probe_report", probe=30)["arrivals"] == []


def test_idle_phase_is_armed_and_retired(start_edge: StartEdge) -> None:
    rig = start_edge()
    rig.begin(expected=0)
    report = rig.ask("retire", round=0)
    assert (report["type"], report["complete"], report["high_water_slots"]) == ("retired", 0, 0)


def test_two_epochs_live_side_by_side(start_edge: StartEdge) -> None:
    rig = start_edge()
    rig.begin(expected=0b110)
    groups = [{"group": group_of(source), "source": source} for source in (A, C)]
    rig.ask("epoch", epoch=1, phases=[{"expected": 0b100010, "deadline_ns": 10**10}], groups=groups)
    rig.ask("arm", round=1, epoch=1, phase=0)
    rig.contribute(A, values(1), epoch=1, round=1)
    rig.contribute(A, values(2))
    rig.contribute(C, values(3), epoch=1, round=1)
    header, total = rig.result()
    assert (header.epoch, header.round, header.bitmap) == (1, 1, 0b100010)
    assert (total == values(1) + values(3)).all()
    rig.contribute(B, values(4))
    header, total = rig.result()
    assert (header.epoch, header.round, header.bitmap) == (0, 0, 0b110)
    assert (total == values(2) + values(4)).all()
    rig.ask("epoch", epoch=2, phases=[], groups=groups)
    rig.contribute(B, values(5))  # its flow was epoch 0's only: left
    assert rig.ask("retire", round=0)["refused"] == {}


def test_epoch_that_cannot_be_joined_is_refused_and_the_one_before_goes_on(start_edge: StartEdge) -> None:
    rig = start_edge()
    rig.begin(expected=0b110)
    phases = [{"expected": 0b110, "deadline_ns": 10**10}]
    flows = [{"group": group_of(A), "source": A}, {"group": "10.9.9.9", "source": A}]
    assert "Invalid argument" in rig.ask("epoch", epoch=1, phases=phases, groups=flows)["refused"]
    assert rig.ask("leave", epoch=1) == {"type": "left", "epoch": 1}
    rig.contribute(A, values(1))
    rig.contribute(B, values(2))
    _, total = rig.result()
    assert (total == values(1) + values(2)).all()
    answer = rig.ask("epoch", epoch=1, phases=phases, groups=flows[:1])
    assert answer == {"type": "epoch_ready", "epoch": 1, "refused": ""}


def test_results_never_outrun_the_access_link(start_edge: StartEdge) -> None:
    rig = start_edge(line_rate_bps=1e8, shard_values=[400_000], slots=200)
    rig.begin(expected=0b10)
    start = time.monotonic_ns()
    for chunk in range(200):
        rig.contribute(A, values(chunk), chunk=chunk)
    numbers = [rig.result()[0].number for _ in range(200)]
    # 200 frames of 8106 bytes last 129.7 ms at 100 Mbit/s, of which 25 ms may be ahead of time.
    assert time.monotonic_ns() - start >= 100_000_000
    assert numbers == list(range(200))


def test_each_shard_has_its_host_and_its_numbers(start_edge: StartEdge) -> None:
    rig = start_edge(shard_values=[4000, 2500], host_addresses=[HOST, OTHER_HOST])
    rig.begin(expected=0b10)
    with rig.lan.udp_socket() as other:
        other.bind((OTHER_HOST, RESULT_PORT))
        other.settimeout(5)
        for shard, chunk in ((0, 0), (1, 0), (0, 1), (1, 1)):
            rig.contribute(A, values(chunk, 500 if (shard, chunk) == (1, 1) else 2000), shard=shard, chunk=chunk)
        seen = [rig.result()[0] for _ in range(2)]
        assert [(header.shard, header.chunk, header.number) for header in seen] == [(0, 0, 0), (0, 1, 1)]
        seen = [parse_packet(memoryview(other.recv(10_000))) for _ in range(2)]
        assert [(header.shard, header.chunk, header.number) for header in seen] == [(1, 0, 0), (1, 1, 1)]


def test_stop_ends_the_process(start_edge: StartEdge) -> None:
    rig = start_edge()
    rig.channel.send("stop")
    assert rig.channel.receive() is None
    assert rig.process.wait(5) == 0


def test_end_of_file_on_control_ends_the_process(start_edge: StartEdge) -> None:
    rig = start_edge()
    rig.begin()
    rig.channel.close()
    assert rig.process.wait(5) == 0


def test_errors_are_one_line_and_go_to_the_run(network: tuple[Namespace, Namespace, Namespace]) -> None:
    rig = EdgeRig(*network, setup_message(engine="fpga9"))
    try:
        answer = rig.answer()
        assert answer["type"] == "error"
        assert "engine 'fpga9' is unknown; there are:" in answer["message"]
        assert "\n" not in answer["message"]
        assert rig.process.wait(5) == 1
    finally:
        rig.close()


def test_datagram_has_no_room_for_more_than_a_chunk(start_edge: StartEdge) -> None:
    rig = start_edge(values_per_chunk=100, shard_values=[1000])
    rig.begin(expected=0b10)
    rig.contribute(A, values(1, 2000))
    rig.contribute(A, values(1, 101))
    rig.contribute(A, values(2, 100))
    header, total = rig.result()
    assert (header.value_count, HEADER_BYTES) == (100, 64)
    assert (total == values(2, 100)).all()
    assert rig.ask("retire", round=0)["refused"] == {"length": 2}
