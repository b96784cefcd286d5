from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.sending import RoundPackets, probe_packet, send_times_ns, turns_ns
from agents.shard import make_shard
from aggregator.wire.packet import HEADER_BYTES, Kind, frame_bytes, parse_packet


def test_packets_carry_the_shards_values_and_keys() -> None:
    shard = make_shard(job=7, island_id=3, number=1, shard_values=[10, 12], values_per_chunk=5)
    packets = RoundPackets(shard)
    for round_number in (4, 5):  # the buffer serves every round
        row = np.random.default_rng(round_number).integers(-(2**31), 2**31, 22, dtype=np.int32)
        packets.build(row[shard.value_slice], 2, round_number)
        received = []
        assert packets.lengths.tolist() == [HEADER_BYTES + 20, HEADER_BYTES + 20, HEADER_BYTES + 8]
        for chunk, length in enumerate(packets.lengths.tolist()):
            at = chunk * packets.slot_bytes
            datagram = memoryview(packets.buffer)[at : at + length]
            header = parse_packet(datagram)
            assert (header.kind, header.source, header.contributors, header.bitmap) == (Kind.CONTRIBUTION, 3, 1, 8)
            assert (header.job, header.epoch, header.round, header.shard) == (7, 2, round_number, 1)
            assert (header.chunk, header.number, header.flags, header.number_format) == (chunk, chunk, 0, 0)
            received += np.frombuffer(datagram[HEADER_BYTES:], "<i4").tolist()
        assert received == row[10:].tolist()


def test_the_reference_payload_is_188_full_frames_but_the_last() -> None:
    shard = make_shard(job=1, island_id=0, number=0, shard_values=[418_018], values_per_chunk=2227)
    packets = RoundPackets(shard)
    assert packets.wire_bytes == [9014] * 187 + [frame_bytes(418_018 - 187 * 2227)]
    assert sum(packets.wire_bytes) == 1_692_000


@given(st.lists(st.integers(110, 9014), min_size=1, max_size=30), st.integers(0, 10**15), st.integers(1, 10**12))
def test_bytes_flow_at_a_constant_rate(wire_bytes: list[int], begin_ns: int, duration_ns: int) -> None:
    times = send_times_ns(wire_bytes, begin_ns, duration_ns).tolist()
    assert len(times) == len(wire_bytes)
    passed = 0
    for time, size in zip(times, wire_bytes, strict=True):
        passed += size
        assert time == begin_ns + Fraction(duration_ns * passed, sum(wire_bytes)) // 1


def test_sizes_and_durations_of_full_scale_do_not_overflow() -> None:
    times = send_times_ns([10**10, 10**10], 10**18, 10**12)
    assert times.tolist() == [10**18 + 5 * 10**11, 10**18 + 10**12]


def test_a_probe_carries_group_and_time() -> None:
    shard = make_shard(job=7, island_id=3, number=0, shard_values=[10], values_per_chunk=5)
    sent_ns = 0x0123_4567_89AB_CDEF
    packet = memoryview(probe_packet(shard, 2, 9, "232.1.2.3", sent_ns))
    header = parse_packet(packet)
    assert (header.kind, header.source, header.bitmap, header.contributors) == (Kind.PROBE, 3, 8, 1)
    assert (header.epoch, header.chunk, header.number, header.value_count) == (2, 9, 0xE8010203, 2)
    assert np.frombuffer(packet[HEADER_BYTES:], "<u4").tolist() == [0x89AB_CDEF, 0x0123_4567]


def test_shards_lie_one_behind_the_other_in_whole_chunks() -> None:
    shard = make_shard(job=1, island_id=0, number=2, shard_values=[10, 15, 7], values_per_chunk=5)
    assert (shard.value_slice, shard.chunk_slice, shard.chunks) == (slice(25, 32), slice(5, 7), 2)
    assert [shard.value_range(chunk) for chunk in range(2)] == [(0, 5), (5, 7)]
    with pytest.raises(ValueError, match="multiples of 5"):
        make_shard(job=1, island_id=0, number=0, shard_values=[11, 10], values_per_chunk=5)


def test_shards_take_turns_at_the_rate_of_the_island() -> None:
    frames = [[100, 100], [100, 60]]
    assert turns_ns(frames, 0, 1, 1000, 360).tolist() == [1100, 1300]
    assert turns_ns(frames, 1, 1, 1000, 360).tolist() == [1200, 1360]


def test_copies_of_a_frame_follow_each_other() -> None:
    assert turns_ns([[100, 50]], 0, 3, 0, 450).tolist() == [100, 200, 300, 350, 400, 450]
