"""A host that fetches from the hosts of three other islands, over a channel that loses; no sockets and no clock."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from agents.answering import Answering
from agents.exchange_area import ExchangeArea, map_exchange_area
from agents.fetching import NEVER_NS, Fetching, RoundTrips
from agents.shard import make_shard
from aggregator.wire.packet import (
    FLAG_RETRANSMITTED,
    HEADER_BYTES,
    Header,
    Kind,
    frame_bytes,
    parse_packet,
)

MS = 1_000_000
JOB, EPOCH, ROUND = 7, 2, 9
CHUNKS, PER_CHUNK = 100, 5
HOLD_OFF_NS = 10 * MS
UPLINK_BPS = 8e6  # a frame of 126 bytes takes 0.13 ms, and half a millisecond of a quarter of it
ASKER = "10.1.0.10"
PEERS = {ASKER: 0, "10.1.7.10": 7}
EXPECTED = 0b1110
Loses = Callable[[Header], bool]


def area_of(directory: Path, island: int) -> ExchangeArea:
    area = map_exchange_area(directory / f"{island}", 4, CHUNKS * PER_CHUNK, PER_CHUNK, create=True)
    area.sent[:] = np.random.default_rng(island).integers(-(2**30), 2**30, area.sent.shape)
    return area


def answering(area: ExchangeArea, island: int) -> Answering:
    shard = make_shard(JOB, island, 0, [CHUNKS * PER_CHUNK], PER_CHUNK)
    answers = Answering(shard, area, PEERS, UPLINK_BPS, HOLD_OFF_NS // 2)
    answers.keep(ROUND, EPOCH)
    return answers


def fetch(first: int, bitmap: int, **fields: object) -> Header:
    header = Header(Kind.FETCH, 0, JOB, EPOCH, ROUND, 0, first, 0, 0, bitmap.bit_count(), bitmap)
    return replace(header, **fields)  # type: ignore[arg-type]


class Exchange:
    """Everybody, and the way between them of so many ms."""

    def __init__(self, directory: Path, loses: Loses, delays_ms: dict[int, int]) -> None:
        self.areas = {island: area_of(directory, island) for island in delays_ms}
        self.sources = {island: answering(area, island) for island, area in self.areas.items()}
        self.have: NDArray[np.uint64] = np.zeros(CHUNKS, np.uint64)
        self.fetching = Fetching(EXPECTED, self.have, HOLD_OFF_NS, RoundTrips(HOLD_OFF_NS))
        self.loses = loses
        self.delays_ms = delays_ms
        self.now_ns = 0
        self.flying: list[tuple[int, int, Header, bytes]] = []
        self.fetched: list[tuple[int, int]] = []
        self.most_on_the_way = 0

    def until_quiet(self, most_ms: int) -> None:
        for _ in range(most_ms):
            self.now_ns += MS
            for island, first, bitmap in self.fetching.requests(self.now_ns):
                self._fly(island, fetch(first, bitmap), b"")
            for island, source in self.sources.items():
                while (answer := source.answer(self.now_ns)) is not None:
                    assert answer.address == ASKER
                    self._fly(island, parse_packet(answer.datagram), bytes(answer.datagram[HEADER_BYTES:]))
            for due_ns, island, header, payload in [each for each in self.flying if each[0] <= self.now_ns]:
                self.flying.remove((due_ns, island, header, payload))
                if header.kind is Kind.FETCH:
                    assert self.sources[island].request(header, ASKER, self.now_ns)
                else:
                    self._take(island, header, payload)
            if self.fetching.next_ns() == NEVER_NS and not self.flying:
                return
        pytest.fail(f"not done after {most_ms} ms")

    def _fly(self, island: int, header: Header, payload: bytes) -> None:
        if not self.loses(header):
            self.flying.append((self.now_ns + self.delays_ms[island] * MS, island, header, payload))
        on_the_way = sum(header.kind is not Kind.FETCH for _, _, header, _ in self.flying)
        self.most_on_the_way = max(self.most_on_the_way, on_the_way)

    def _take(self, island: int, header: Header, payload: bytes) -> None:
        assert (header.kind, header.flags, header.source) == (Kind.CONTRIBUTION, FLAG_RETRANSMITTED, island)
        assert (header.job, header.epoch, header.round, header.number) == (JOB, EPOCH, ROUND, header.chunk)
        assert (header.bitmap, header.contributors, header.stream) == (1 << island, 1, 0)
        area = self.areas[island]
        first = header.chunk * PER_CHUNK
        assert payload == area.sent[area.row(ROUND), first : first + PER_CHUNK].tobytes()
        self.fetched.append((island, header.chunk))
        if not int(self.have[header.chunk]) & header.bitmap:
            self.arrived(header.chunk, header.bitmap, fetched=True)

    def arrived(self, chunk: int, bitmap: int, fetched: bool) -> None:
        """Contributions that were not there yet have been merged."""
        self.have[chunk] |= np.uint64(bitmap)
        self.fetching.arrived(chunk, bitmap, self.now_ns, fetched)


def nothing(_header: Header) -> bool:
    return False


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_everything_is_fetched_when_nothing_has_come(tmp_path: Path, share: float) -> None:
    rng = random.Random(1)
    exchange = Exchange(tmp_path, lambda _header: rng.random() < share, {1: 5, 2: 40, 3: 90})
    exchange.fetching.all_due_ns = 50 * MS
    exchange.until_quiet(8000)
    assert set(exchange.fetched) == {(island, chunk) for island in (1, 2, 3) for chunk in range(CHUNKS)}
    assert exchange.most_on_the_way <= 96
    if not share:
        assert len(exchange.fetched) == 3 * CHUNKS


def test_only_what_a_sum_lacks_is_fetched_and_not_at_once(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path, nothing, {1: 5, 2: 40, 3: 90})
    for chunk in range(CHUNKS):
        bitmap = {3: 0b0110, 70: 0b0010}.get(chunk, EXPECTED)
        exchange.arrived(chunk, bitmap, fetched=False)
        if bitmap != EXPECTED:
            exchange.fetching.given_up(chunk, 0)
    assert exchange.fetching.next_ns() == HOLD_OFF_NS
    # One comes by itself.
    exchange.arrived(70, 0b0100, fetched=False)
    exchange.until_quiet(1000)
    assert sorted(exchange.fetched) == [(3, 3), (3, 70)]
    assert exchange.fetching.requests_sent == 2


def test_round_trips_are_measured_and_waited_for(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path, nothing, {1: 5, 2: 40, 3: 90})
    exchange.fetching.all_due_ns = MS
    exchange.until_quiet(8000)
    lost = [4]

    def lose(header: Header) -> bool:
        lost[0] -= header.kind is Kind.FETCH
        return header.kind is Kind.FETCH and lost[0] >= 0

    trips = exchange.fetching._round_trips
    exchange.have = np.zeros(1, np.uint64)
    later = Fetching(0b0010, exchange.have, HOLD_OFF_NS, trips)
    exchange.fetching, exchange.loses, exchange.fetched = later, lose, []
    exchange.sources[1].keep(ROUND + 1, EPOCH)
    began_ns = exchange.now_ns
    later.all_due_ns = began_ns
    exchange.until_quiet(8000)
    # Four requests were lost: 1 + 2 + 4 + 4 time-outs, each longer than the round trip of 10 ms.
    assert exchange.fetched == [(1, 0)]
    assert 110 * MS <= exchange.now_ns - began_ns <= 2000 * MS


def test_a_link_that_loses_the_first_requests_is_asked_over_often_enough(tmp_path: Path) -> None:
    lost = [8]

    def lose(header: Header) -> bool:
        lost[0] -= header.kind is Kind.FETCH
        return header.kind is Kind.FETCH and lost[0] >= 0

    exchange = Exchange(tmp_path, lose, {1: 5, 2: 40, 3: 90})
    exchange.have = np.zeros(1, np.uint64)
    exchange.fetching = Fetching(0b0010, exchange.have, HOLD_OFF_NS, RoundTrips(HOLD_OFF_NS))
    exchange.fetching.all_due_ns = 0
    exchange.until_quiet(5000)  # in which a round is not given up
    assert exchange.fetched == [(1, 0)]


def test_answers_take_a_quarter_of_the_uplink(tmp_path: Path) -> None:
    source = answering(area_of(tmp_path, 1), 1)
    assert source.request(fetch(0, 2**64 - 1), ASKER, 0)
    sent = 0
    for now_ns in range(0, 20 * MS, MS // 4):
        while (answer := source.answer(now_ns)) is not None:
            sent += frame_bytes(PER_CHUNK)
            assert len(answer.datagram) == HEADER_BYTES + 4 * PER_CHUNK
    # Five milliseconds of it at once.
    assert sent <= UPLINK_BPS / 8 * 0.25 * 0.0255 + frame_bytes(PER_CHUNK)
    assert sent >= UPLINK_BPS / 8 * 0.25 * 0.02


def test_what_is_asked_again_at_once_is_answered_once(tmp_path: Path) -> None:
    source = answering(area_of(tmp_path, 1), 1)
    for now_ns in (0, MS, 2 * MS):
        assert source.request(fetch(5, 0b11), ASKER, now_ns)
    while source.answer(1000 * MS) is not None:
        pass
    assert source.counts == {"fetches": 3, "answers_refused": 4, "answers": 2}


def test_host_has_a_budget_of_requests(tmp_path: Path) -> None:
    source = answering(area_of(tmp_path, 1), 1)
    for now_ns in range(0, 100 * MS, MS // 10):
        assert source.request(fetch(0, 1), ASKER, now_ns)
    # One in 5 ms, and 32 at once.
    assert source.counts["fetches"] <= 20 + 32
    assert source.counts["fetches"] + source.counts["fetches_limited"] == 1000
    assert source.counts["answers"] == 0
    assert source.request(fetch(0, 1), "10.1.7.10", 0) is False  # the id of another
    assert source.request(fetch(0, 1, source=7), "10.1.7.10", 0) is True


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": Kind.NACK},
        {"source": 1},
        {"job": JOB + 1},
        {"epoch": EPOCH + 1},
        {"round": ROUND + 1},
        {"round": ROUND - 1},
        {"shard": 1},
        {"bitmap": 2},
        {"contributors": 2},
        {"value_count": 1},
    ],
)
def test_what_is_no_fetch_of_this_host_is_refused(tmp_path: Path, fields: dict[str, object]) -> None:
    source = answering(area_of(tmp_path, 1), 1)
    assert source.request(replace(fetch(0, 1), **fields), ASKER, 0) is False  # type: ignore[arg-type]
    assert source.answer(0) is None


def test_strangers_are_refused(tmp_path: Path) -> None:
    source = answering(area_of(tmp_path, 1), 1)
    assert source.request(fetch(0, 1), "10.1.0.11", 0) is False


def test_chunks_that_do_not_exist_are_not_sent(tmp_path: Path) -> None:
    source = answering(area_of(tmp_path, 1), 1)
    assert source.request(fetch(CHUNKS - 1, 0b11), ASKER, 0)
    assert source.answer(0) is not None
    assert source.answer(1000 * MS) is None


def test_last_rounds_are_kept_but_for_the_row_that_is_written_next(tmp_path: Path) -> None:
    source = answering(area_of(tmp_path, 1), 1)
    for number in range(ROUND + 1, ROUND + 4):
        source.keep(number, EPOCH)
    kept = [source.request(fetch(0, 1, round=number), ASKER, 0) for number in range(ROUND, ROUND + 4)]
    assert kept == [False, True, True, True]
