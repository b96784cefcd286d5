"""The receiver in C and the plain one, packet by packet, do the same: counts, sums, and what is asked for again."""

import socket
import struct
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.exchange_area import map_exchange_area
from agents.receiving import Receiver
from agents.recovery import Recovery, RepairSettings
from agents.shard import make_shard
from aggregator.wire.packet import HEADER_BYTES, Header, Kind, Reason, write_packet
from tests.unit.agents.fed_receiver import feed
from tests.unit.agents.plain_receiver import PlainReceiver

MS = 1_000_000
HOLD_OFF_NS = 10 * MS
JOB, ISLAND, EPOCH, ROUND = 7, 0, 2, 6
PER_CHUNK, CHUNKS = 3, 12
SHARD = make_shard(JOB, ISLAND, 1, [2 * PER_CHUNK, PER_CHUNK * CHUNKS - 1], PER_CHUNK)
EXPECTED = 0b1110
EDGE, PEER, OTHER_PEER, STRANGER = "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"
PEERS = {PEER: 1, OTHER_PEER: 2}
KEY = bytes(range(16))
NUMBERS = 1 << 32
STARTS = (0, 1000, NUMBERS - 20)


@dataclass(frozen=True)
class Packet:
    """What is sent: a packet like most, `ahead` of the stream's next number, but for the `changes`."""

    ahead: int
    held: int  # how far the trailing edge is behind the number
    bitmap: int
    sender: str
    changes: dict[str, Any]
    damaged: int


ODD: dict[str, st.SearchStrategy[Any]] = {
    "kind": st.sampled_from(list(Kind)),
    "source": st.sampled_from([0, 1, 2, 3, 64, 255]),
    "job": st.sampled_from([JOB, JOB + 1]),
    "epoch": st.integers(EPOCH - 1, EPOCH + 1),
    "round": st.integers(ROUND - 1, ROUND + 2),
    "shard": st.integers(0, 2),
    "chunk": st.integers(0, CHUNKS + 1) | st.just(NUMBERS - 1),
    "value_count": st.integers(0, PER_CHUNK + 1),
    "contributors": st.integers(0, 4),
    "flags": st.integers(0, 4),
    "reason": st.sampled_from(list(Reason)),
    "stream": st.sampled_from([0, 5, 6, 7]),
    "number_format": st.integers(0, 1),
    "trailing_edge": st.sampled_from([*STARTS, NUMBERS // 2, NUMBERS - 1]),
    "number": st.sampled_from([*STARTS, NUMBERS // 2, NUMBERS // 2 + 40]),
    "bitmap": st.integers(0, 2**64 - 1),
}
# Kinds that must agree with other fields to be taken.
ODD_TOGETHER: list[dict[str, Any]] = [
    {"kind": Kind.HEARTBEAT, "value_count": 0},
    {"kind": Kind.GONE, "value_count": 0, "bitmap": 0b1011},
    {"kind": Kind.CONTRIBUTION, "source": 1, "bitmap": 2, "contributors": 1, "flags": 1, "reason": Reason.NONE},
    {"kind": Kind.CONTRIBUTION, "source": 2, "bitmap": 4, "contributors": 1, "flags": 3, "reason": Reason.NONE},
    {"kind": Kind.CONTRIBUTION, "source": 1, "bitmap": 2, "contributors": 1, "flags": 2, "stream": 0},
    {"kind": Kind.CONTRIBUTION, "source": 2, "bitmap": 4, "contributors": 1, "flags": 2, "stream": 0},
    {"flags": 2},
    {"reason": Reason.TIMEOUT},
]
CHANGES = st.one_of(
    st.just({}),
    st.just({}),
    st.sampled_from(ODD_TOGETHER),
    st.sampled_from(sorted(ODD)).flatmap(lambda name: st.fixed_dictionaries({name: ODD[name]})),
)
PACKETS = st.builds(
    Packet,
    ahead=st.one_of(st.just(0), st.just(0), st.just(0), st.integers(-6, 4), st.sampled_from([-100, 90, 5000])),
    held=st.one_of(st.just(4), st.integers(-2, 8)),
    bitmap=st.sampled_from([EXPECTED, EXPECTED, EXPECTED, 0b0110, 0b1000, 0b0010]),
    sender=st.sampled_from([EDGE] * 9 + [PEER, OTHER_PEER, STRANGER]),
    changes=CHANGES,
    damaged=st.sampled_from([0] * 15 + [1, 2, 3]),
)
BATCHES = st.lists(st.tuples(st.sampled_from([0, 1, 5, 12, 60]), st.lists(PACKETS, max_size=12)), max_size=12)


class Both:
    """The same host twice: the receiver with its recovery, and the plain one."""

    def __init__(self, area_path: Any, number_format: int, key: bytes | None, fetch: bool) -> None:
        area = map_exchange_area(area_path, 1, SHARD.first_value + SHARD.values, PER_CHUNK)
        repair = RepairSettings(EDGE, PEERS, fetch, HOLD_OFF_NS, 1e9)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
            self.receiver = Receiver(unused, SHARD, EDGE, PEERS, number_format, key)
        with patch("agents.recovery.REPAIR_PORT", 0):
            self.recovery = Recovery("127.0.0.1", SHARD, area, repair, number_format, key)
        self.recovery.close()
        self.plain = PlainReceiver(SHARD, EDGE, PEERS, number_format, key, HOLD_OFF_NS)
        self.number_format, self.key, self.fetch = number_format, key, fetch
        self.sums = np.full((2, SHARD.values), 7, np.int32)
        self.bitmaps = np.full(CHUNKS, 7, np.uint64)
        self.now_ns = 10**12

    def begin(self, round_number: int) -> None:
        self.receiver.begin(EPOCH, round_number, EXPECTED, self.sums[0], self.bitmaps)
        self.recovery.begin(EPOCH, round_number, False, self.receiver)
        self.plain.begin(EPOCH, round_number, EXPECTED, self.sums[1], self.fetch)

    def fetch_all_at(self, fetch_ns: int) -> None:
        self.recovery.start(fetch_ns)
        if self.plain.fetching is not None:
            self.plain.fetching.all_due_ns = fetch_ns

    def end(self) -> None:
        assert self.receiver.end() == self.plain.end()
        self.recovery.end()

    def take(self, batch: list[tuple[bytes, str]]) -> None:
        feed(self.receiver, batch, self.now_ns, self.recovery.tell)
        self.recovery.catch_up(self.receiver)
        for datagram, sender in batch:
            self.plain.take(datagram, sender, self.now_ns)

    def compare(self) -> None:
        watch, plain = self.recovery._watch, self.plain.watch
        assert (watch.stream, watch.next, watch.counts) == (plain.stream, plain.next, plain.counts)
        assert watch._missing == plain._missing
        assert watch.next_ns() == plain.next_ns()
        assert watch.requests(self.now_ns) == plain.requests(self.now_ns)
        assert self.receiver.have.tolist() == self.plain.have.tolist()
        assert self.sums[0].tobytes() == self.sums[1].tobytes()
        assert self.receiver.complete == self.plain.complete
        fetching = self.recovery._fetching
        assert (fetching is None) == (self.plain.fetching is None)
        if fetching is not None and self.plain.fetching is not None:
            assert fetching.next_ns() == self.plain.fetching.next_ns()
            assert fetching.requests(self.now_ns) == self.plain.fetching.requests(self.now_ns)
            assert fetching._asked == self.plain.fetching._asked
            assert fetching._held == self.plain.fetching._held


def datagram_of(packet: Packet, position: int, number: int, number_format: int, key: bytes | None) -> bytes:
    chunk = position % CHUNKS
    first, end = SHARD.value_range(chunk)
    header = Header(
        kind=Kind.RESULT,
        source=ISLAND,
        job=JOB,
        epoch=EPOCH,
        round=ROUND,
        shard=SHARD.number,
        chunk=chunk,
        value_count=end - first,
        number=(number + packet.ahead) % NUMBERS,
        contributors=packet.bitmap.bit_count(),
        bitmap=packet.bitmap,
        reason=Reason.COMPLETE,
        trailing_edge=(number + packet.ahead - packet.held) % NUMBERS,
        number_format=number_format,
        stream=5,
    )
    for name, value in packet.changes.items():
        setattr(header, name, value)
    rng = np.random.default_rng(position)
    if number_format:
        payload = rng.standard_normal(header.value_count).astype("<f4").tobytes()
    else:
        payload = rng.integers(-(2**31), 2**31, header.value_count, np.int32).astype("<i4").tobytes()
    out = bytearray(HEADER_BYTES + len(payload))
    write_packet(memoryview(out), header, payload, key if packet.damaged != 1 else None)
    if packet.damaged == 2:
        out[position % len(out)] ^= 0x10
    return bytes(out[: len(out) - 3]) if packet.damaged == 3 else bytes(out)


@pytest.fixture(scope="module")
def area_path(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("area") / "area"
    map_exchange_area(path, 1, SHARD.first_value + SHARD.values, PER_CHUNK, create=True)
    return path


@settings(max_examples=250, deadline=None)
@given(BATCHES, st.sampled_from(STARTS), st.integers(0, 1), st.booleans(), st.booleans())
def test_they_do_the_same(
    area_path: Any,
    batches: list[tuple[int, list[Packet]]],
    number: int,
    number_format: int,
    tagged: bool,
    fetch: bool,
) -> None:
    key = KEY if tagged else None
    both = Both(area_path, number_format, key, fetch)
    both.begin(ROUND)
    both.fetch_all_at(both.now_ns + 40 * MS)
    position = 0
    for turn, (passed_ms, packets) in enumerate(batches):
        both.now_ns += passed_ms * MS
        batch = []
        for packet in packets:
            batch.append((datagram_of(packet, position, number, number_format, key), packet.sender))
            number = max(number, number + packet.ahead + 1) if packet.ahead > -50 else number
            position += 1
        both.take(batch)
        both.compare()
        if turn == 8:
            both.end()
            both.compare()
        if turn == 10:
            both.begin(ROUND + 1)
    both.end()
    both.compare()


def test_a_long_stream_with_losses_ends_alike(area_path: Any) -> None:
    """Thousands of packets in turn, some lost, some late, some twice, across the wrap of their numbers."""
    both = Both(area_path, 0, None, True)
    both.begin(ROUND)
    rng = np.random.default_rng(3)
    plain = Packet(0, 150, EXPECTED, EDGE, {}, 0)
    late: list[tuple[int, int]] = []
    number, position = NUMBERS - 1000, 0
    while position < 6000:
        batch = []
        for _ in range(int(rng.integers(1, 20))):
            fate = rng.random()
            if fate > 0.97:
                late.append((number, position))
            elif fate > 0.01:
                batch.append((datagram_of(plain, position, number % NUMBERS, 0, None), EDGE))
            if late and fate < 0.02:
                late_number, late_position = late.pop(0)
                batch.append((datagram_of(plain, late_position, late_number % NUMBERS, 0, None), EDGE))
            number, position = number + 1, position + 1
        both.now_ns += int(rng.integers(0, 3 * MS))
        both.take(batch)
        both.compare()
    counts = both.plain.watch.counts
    assert min(counts.missed, counts.reordered, counts.requests, counts.gone) > 10
    both.end()


def test_a_trailing_edge_that_falls_back_does_not_bring_back_what_is_gone(area_path: Any) -> None:
    both = Both(area_path, 0, None, False)
    both.begin(ROUND)
    for turn in ([(0, 0), (3, 3)], [(4, 1), (5, 5)], [(6, 6)]):
        packets = [(number, Packet(0, held, EXPECTED, EDGE, {}, 0)) for number, held in turn]
        both.take([(datagram_of(packet, number, 1000 + number, 0, None), EDGE) for number, packet in packets])
        both.compare()
    assert both.plain.watch.counts.missed == both.plain.watch.counts.gone == 2


def test_floats_that_are_no_numbers_and_sums_that_wrap_are_added_alike(area_path: Any) -> None:
    special = struct.pack("<3f", float("inf"), -0.0, 1e-40), struct.pack("<3f", float("-inf"), -0.0, 1e-40)
    largest = struct.pack("<3i", 2**31 - 1, -(2**31), -1), struct.pack("<3i", 1, -1, -1)
    for number_format, payloads in ((1, special), (0, largest)):
        both = Both(area_path, number_format, None, False)
        both.begin(ROUND)
        batch = []
        for source, payload in zip((1, 2), payloads, strict=True):
            bit = 1 << source
            header = Header(Kind.CONTRIBUTION, source, JOB, EPOCH, ROUND, SHARD.number, 0, 3, bitmap=bit, flags=1)
            header.number_format = number_format
            out = bytearray(HEADER_BYTES + 12)
            write_packet(memoryview(out), header, payload)
            batch.append((bytes(out), EDGE))
        both.take(batch)
        both.compare()
        assert both.receiver.end().bypassed == 2
