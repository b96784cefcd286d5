from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.receiving import Counts, RoundReceiver
from agents.shard import make_shard
from aggregator.wire.packet import FLAG_BYPASSED, FLAG_RETRANSMITTED, Header, Kind, Reason

SHARD = make_shard(job=7, island_id=0, number=0, shard_values=[5], values_per_chunk=2)
EXPECTED = 0b11110  # islands 1 to 4
RNG = np.random.default_rng(11)
SENT = RNG.integers(-(2**27), 2**27, (5, 5), dtype=np.int32)  # what each island sends


class Area:
    """A receiver and the rows that it writes, which an earlier round has left full."""

    def __init__(self, expected: int = EXPECTED) -> None:
        self.summed = np.full(5, 99, np.int32)
        self.bitmaps = np.full(3, 99, np.uint64)
        self.receiver = RoundReceiver(SHARD, (2, 6), expected, self.summed, self.bitmaps)

    def result(self, chunk: int, bitmap: int, **changes: object) -> bool:
        return self.take(make_result(chunk, bitmap, **changes), bitmap)

    def take(self, header: Header, bitmap: int) -> bool:
        first, end = min(2 * header.chunk, 5), min(2 * header.chunk + 2, 5)
        islands = [island for island in range(5) if bitmap >> island & 1]
        payload = SENT[islands, first:end].sum(axis=0, dtype=np.int32)
        return self.receiver.take(header, payload.data.cast("B"))


def make_result(chunk: int, bitmap: int, **changes: object) -> Header:
    header = Header(
        kind=Kind.RESULT,
        source=0,
        job=7,
        epoch=2,
        round=6,
        shard=0,
        chunk=chunk,
        value_count=1 if chunk == 2 else 2,
        contributors=bitmap.bit_count(),
        bitmap=bitmap,
        reason=Reason.COMPLETE if bitmap == EXPECTED else Reason.TIMEOUT,
    )
    return replace(header, **changes)  # type: ignore[arg-type]


def make_bypassed(chunk: int, island: int) -> Header:
    return replace(
        make_result(chunk, 1 << island), kind=Kind.CONTRIBUTION, source=island, flags=FLAG_BYPASSED, reason=Reason.NONE
    )


def test_the_rows_are_zero_until_results_come() -> None:
    area = Area()
    assert area.summed.tolist() == [0] * 5
    assert area.bitmaps.tolist() == [0] * 3
    assert (area.receiver.complete, area.receiver.delivered) == (False, 0)


def test_complete_results_complete_the_round_with_the_last_one() -> None:
    area = Area()
    for position, chunk in enumerate((2, 0, 1)):
        assert not area.receiver.complete
        assert area.result(chunk, EXPECTED)
        assert area.receiver.delivered == 4 * (position + 1)
    assert area.receiver.complete
    assert area.summed.tolist() == SENT[1:].sum(axis=0).tolist()
    assert area.bitmaps.tolist() == [EXPECTED] * 3
    assert area.receiver.counts == Counts(complete=3)


def test_disjoint_partial_results_and_bypassed_contributions_merge() -> None:
    area = Area(expected=EXPECTED)
    for chunk in range(3):
        assert area.result(chunk, 0b00110)
        assert area.take(make_bypassed(chunk, 4), 1 << 4)
        assert not area.receiver.complete
        assert area.result(chunk, 0b01000) is True
        assert area.receiver.complete is (chunk == 2)
    assert area.summed.tolist() == SENT[1:].sum(axis=0).tolist()
    assert area.receiver.counts == Counts(partial=6, bypassed=3)


def test_duplicates_and_overlaps_are_dropped_whole_and_counted_apart() -> None:
    area = Area()
    assert area.result(0, 0b00110)
    before = area.summed.tolist()
    assert not area.result(0, 0b00110)
    assert not area.result(0, 0b00010)
    assert not area.take(make_bypassed(0, 2), 1 << 2)
    assert not area.result(0, 0b01100)
    assert not area.result(0, EXPECTED)
    assert area.summed.tolist() == before
    assert area.bitmaps.tolist() == [0b00110, 0, 0]
    assert area.receiver.counts == Counts(partial=1, duplicates=3, overlaps=2)
    assert area.receiver.delivered == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"job": 8},
        {"epoch": 3},
        {"epoch": 1},
        {"round": 7},
        {"shard": 1},
        {"chunk": 3},
        {"value_count": 1},
        {"contributors": 3},
        {"bitmap": 0, "contributors": 0},
        {"bitmap": 0b11111, "contributors": 5},  # the own island is not expected back
        {"bitmap": 1 << 5, "contributors": 1},
        {"source": 1},
        {"number_format": 1},
        {"kind": Kind.PROBE},
        {"kind": Kind.CONTRIBUTION, "source": 1, "bitmap": 2, "contributors": 1},  # not flagged as bypassed
        {"kind": Kind.CONTRIBUTION, "source": 1, "bitmap": 4, "contributors": 1, "flags": FLAG_BYPASSED},
        {"job": 8, "round": 5},
    ],
)
def test_what_is_not_for_this_host_and_round_is_refused(changes: dict[str, object]) -> None:
    area = Area()
    assert not area.take(replace(make_result(0, EXPECTED), **changes), EXPECTED)  # type: ignore[arg-type]
    assert area.receiver.counts == Counts(refused=1)
    assert (area.summed.any(), area.bitmaps.any()) == (False, False)


def test_results_of_earlier_rounds_are_late() -> None:
    area = Area()
    assert not area.result(0, EXPECTED, round=5)
    assert not area.result(0, EXPECTED, round=5, epoch=1)
    assert area.receiver.counts == Counts(late=2)
    assert not area.summed.any()


def test_an_island_that_expects_nobody_is_complete_and_takes_nothing() -> None:
    area = Area(expected=0)
    assert area.receiver.complete
    assert not area.result(0, EXPECTED)
    assert area.receiver.counts == Counts(refused=1)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 15)), max_size=40))
def test_any_stream_of_results_leaves_the_sum_of_its_recorded_contributors(stream: list[tuple[int, int]]) -> None:
    area = Area()
    merged = sum(area.result(chunk, bits << 1) for chunk, bits in stream)
    for chunk, bitmap in enumerate(area.bitmaps.tolist()):
        islands = [island for island in range(5) if bitmap >> island & 1]
        part = slice(2 * chunk, min(2 * chunk + 2, 5))
        assert area.summed[part].tolist() == SENT[islands, part].sum(axis=0).tolist()
    counts = area.receiver.counts
    assert counts.complete + counts.partial == merged
    assert merged + counts.duplicates + counts.overlaps == len(stream)
    assert area.receiver.complete is all(bitmap == EXPECTED for bitmap in area.bitmaps.tolist())
    assert area.receiver.delivered == sum(bitmap.bit_count() for bitmap in area.bitmaps.tolist())


@pytest.mark.parametrize(
    ("flags", "counted"),
    [
        (FLAG_BYPASSED, {"bypassed": 1}),
        (FLAG_BYPASSED | FLAG_RETRANSMITTED, {"bypassed": 1, "repaired": 1}),
        (FLAG_RETRANSMITTED, {"fetched": 1, "repaired": 1}),
        (0, {"refused": 1}),
        (4 | FLAG_BYPASSED, {"refused": 1}),
    ],
)
def test_contributions_are_counted_by_the_way_they_came(flags: int, counted: dict[str, int]) -> None:
    area = Area()
    merged = area.take(replace(make_bypassed(1, 3), flags=flags), 1 << 3)
    assert merged == ("refused" not in counted)
    assert area.receiver.counts == Counts(**counted)


def test_results_that_are_sent_again_count_all_their_contributors_as_repaired() -> None:
    area = Area()
    assert area.result(0, EXPECTED, flags=FLAG_RETRANSMITTED)
    assert area.receiver.counts == Counts(complete=1, repaired=4)
    assert not area.result(1, EXPECTED, flags=FLAG_BYPASSED)
