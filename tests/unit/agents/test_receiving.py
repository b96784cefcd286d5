"""A host's way in, over a real socket on the loopback interface: what is merged, what is refused, and when it came."""

import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.receiving import Counts, Receiver, Tell, Why, open_receiver
from agents.shard import make_shard
from aggregator.wire.packet import FLAG_BYPASSED, FLAG_RETRANSMITTED, HEADER_BYTES, Header, Kind, Reason, write_packet

SHARD = make_shard(job=7, island_id=0, number=0, shard_values=[5], values_per_chunk=2)
EXPECTED = 0b11110  # islands 1 to 4
RNG = np.random.default_rng(11)
SENT = RNG.integers(-(2**27), 2**27, (5, 5), dtype=np.int32)  # what each island sends
HOST, EDGE, PEER, STRANGER = "127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"
KEY = bytes(range(16))
MS = 1_000_000


class Rig:
    """A receiver, who sends to it, and the rows that it writes, which an earlier round has left full."""

    def __init__(self, key: bytes | None = None) -> None:
        self.key = key
        self.socket = open_receiver(HOST, 0)
        self.senders = {address: socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for address in (EDGE, PEER, STRANGER)}
        for address, sender in self.senders.items():
            sender.bind((address, 0))
        self.others = os.eventfd(0)
        self.receiver = Receiver(self.socket, SHARD, EDGE, {PEER: 3}, 0, key)
        self.begin()

    def begin(self, expected: int = EXPECTED) -> None:
        self.summed = np.full(5, 99, np.int32)
        self.bitmaps = np.full(3, 99, np.uint64)
        self.receiver.end()
        self.receiver.begin(2, 6, expected, self.summed, self.bitmaps)

    def close(self) -> None:
        for sock in (self.socket, *self.senders.values()):
            sock.close()
        os.close(self.others)

    def send(self, header: Header, bitmap: int, sender: str = EDGE, key: bytes | None = None) -> None:
        """A packet is under way with the sum of what these islands send."""
        first, end = min(2 * header.chunk, 5), min(2 * header.chunk + 2, 5)
        islands = [island for island in range(5) if bitmap >> island & 1]
        payload = SENT[islands, first:end].sum(axis=0, dtype=np.int32).tobytes()
        payload = payload[: 4 * header.value_count].ljust(4 * header.value_count, b"\0")
        out = bytearray(HEADER_BYTES + len(payload))
        write_packet(memoryview(out), header, payload, key or self.key)
        self.send_bytes(bytes(out), sender)

    def send_bytes(self, datagram: bytes, sender: str = EDGE) -> None:
        self.senders[sender].sendto(datagram, self.socket.getsockname())

    def take_in(self) -> int:
        """Take in all that waits; how much was merged."""
        before = len(self.receiver.waits_ns)
        while select.select([self.socket], [], [], 0)[0]:
            assert not self.receiver.wait(self.others, 0, Tell.NONE)
        return len(self.receiver.waits_ns) - before

    def take(self, header: Header, bitmap: int, sender: str = EDGE) -> bool:
        self.send(header, bitmap, sender)
        return self.take_in() == 1

    def result(self, chunk: int, bitmap: int, **changes: object) -> bool:
        return self.take(make_result(chunk, bitmap, **changes), bitmap)

    def counts(self) -> Counts:
        return self.receiver.end()


@pytest.fixture(scope="module")
def one_rig() -> Iterator[Rig]:
    with closing(Rig()) as rig:
        yield rig


@pytest.fixture
def rig(one_rig: Rig) -> Rig:
    one_rig.begin()
    return one_rig


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


def test_the_rows_are_zero_until_results_come(rig: Rig) -> None:
    assert rig.summed.tolist() == [0] * 5
    assert rig.bitmaps.tolist() == [0] * 3
    assert (rig.receiver.complete, rig.receiver.delivered, rig.receiver.last_arrival_ns) == (False, 0, 0)


def test_complete_results_complete_the_round_with_the_last_one(rig: Rig) -> None:
    for position, chunk in enumerate((2, 0, 1)):
        assert not rig.receiver.complete
        assert rig.result(chunk, EXPECTED)
        assert rig.receiver.delivered == 4 * (position + 1)
    assert rig.receiver.complete
    assert rig.summed.tolist() == SENT[1:].sum(axis=0).tolist()
    assert rig.bitmaps.tolist() == [EXPECTED] * 3
    assert rig.counts() == Counts(complete=3)


def test_disjoint_partial_results_and_bypassed_contributions_merge(rig: Rig) -> None:
    for chunk in range(3):
        assert rig.result(chunk, 0b00110)
        assert rig.take(make_bypassed(chunk, 4), 1 << 4)
        assert not rig.receiver.complete
        assert rig.result(chunk, 0b01000) is True
        assert rig.receiver.complete is (chunk == 2)
    assert rig.summed.tolist() == SENT[1:].sum(axis=0).tolist()
    assert rig.counts() == Counts(partial=6, bypassed=3)


def test_duplicates_and_overlaps_are_dropped_whole_and_counted_apart(rig: Rig) -> None:
    assert rig.result(0, 0b00110)
    before = rig.summed.tolist()
    assert not rig.result(0, 0b00110)
    assert not rig.result(0, 0b00010)
    assert not rig.take(make_bypassed(0, 2), 1 << 2)
    assert not rig.result(0, 0b01100)
    assert not rig.result(0, EXPECTED)
    assert rig.summed.tolist() == before
    assert rig.bitmaps.tolist() == [0b00110, 0, 0]
    assert rig.receiver.delivered == 2
    assert rig.counts() == Counts(partial=1, duplicates=3, overlaps=2)


@pytest.mark.parametrize(
    "changes",
    [
        {"job": 8},
        {"epoch": 3},
        {"epoch": 1},
        {"round": 7},
        {"shard": 1},
        {"chunk": 3},
        {"chunk": 2**31},
        {"value_count": 1},
        {"contributors": 3},
        {"bitmap": 0, "contributors": 0},
        {"bitmap": 0b11111, "contributors": 5},  # the own island is not expected back
        {"bitmap": 1 << 5, "contributors": 1},
        {"source": 1},
        {"number_format": 1},
        {"kind": Kind.PROBE},
        {"kind": Kind.NACK},
        {"kind": Kind.CONTRIBUTION, "source": 1, "bitmap": 2, "contributors": 1},  # not flagged as bypassed
        {"kind": Kind.CONTRIBUTION, "source": 1, "bitmap": 4, "contributors": 1, "flags": FLAG_BYPASSED},
        {"kind": Kind.CONTRIBUTION, "source": 65, "bitmap": 2, "contributors": 1, "flags": FLAG_BYPASSED},
        {"job": 8, "round": 5},
    ],
)
def test_what_is_not_for_this_host_and_round_is_refused(rig: Rig, changes: dict[str, object]) -> None:
    assert not rig.take(replace(make_result(0, EXPECTED), **changes), EXPECTED)  # type: ignore[arg-type]
    assert (rig.summed.any(), rig.bitmaps.any()) == (False, False)
    assert rig.counts() == Counts(refused=1)


def test_what_is_no_packet_is_refused(rig: Rig) -> None:
    out = bytearray(HEADER_BYTES + 8)
    write_packet(memoryview(out), make_result(0, EXPECTED), bytes(8))
    damaged = [bytes(out[:-1]), bytes(out) + b"\0", b"", bytes(out[:-1]) + b"\1", bytes(9000)]
    for datagram in damaged:
        rig.send_bytes(datagram)
    assert rig.take_in() == 0
    rig.send_bytes(bytes(out))
    assert rig.take_in() == 1
    assert rig.counts() == Counts(complete=1, refused=len(damaged))


def test_only_the_edge_and_who_is_fetched_from_are_listened_to(rig: Rig) -> None:
    fetched = replace(make_bypassed(0, 3), flags=FLAG_RETRANSMITTED)
    assert not rig.take(make_result(0, EXPECTED), EXPECTED, PEER)
    assert not rig.take(make_bypassed(0, 3), 1 << 3, PEER)
    assert not rig.take(replace(fetched, source=2, bitmap=1 << 2), 1 << 2, PEER)  # in the name of another island
    assert not rig.take(make_result(0, EXPECTED), EXPECTED, STRANGER)
    assert not rig.take(fetched, 1 << 3, STRANGER)
    assert not rig.take(replace(fetched, stream=7), 1 << 3, PEER)  # streams are the edge's
    assert rig.take(fetched, 1 << 3, PEER)
    assert rig.counts() == Counts(fetched=1, repaired=1, refused=6)


def test_results_of_earlier_rounds_are_late(rig: Rig) -> None:
    assert not rig.result(0, EXPECTED, round=5)
    assert not rig.result(0, EXPECTED, round=5, epoch=1)
    assert not rig.summed.any()
    assert rig.counts() == Counts(late=2)


def test_what_comes_between_two_rounds_is_late_and_changes_nothing(rig: Rig) -> None:
    assert rig.result(0, EXPECTED)
    rig.receiver.end()
    summed, bitmaps = rig.summed.tolist(), rig.bitmaps.tolist()
    assert not rig.result(1, EXPECTED)
    assert not rig.result(1, EXPECTED, round=7)
    assert (rig.summed.tolist(), rig.bitmaps.tolist()) == (summed, bitmaps)
    assert rig.counts() == Counts(late=2)


def test_an_island_that_expects_nobody_is_complete_and_takes_nothing(rig: Rig) -> None:
    rig.begin(expected=0)
    assert rig.receiver.complete
    assert not rig.result(0, EXPECTED)
    assert rig.counts() == Counts(refused=1)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 15)), max_size=40))
def test_any_stream_of_results_leaves_the_sum_of_its_recorded_contributors(
    one_rig: Rig, stream: list[tuple[int, int]]
) -> None:
    rig = one_rig
    rig.begin()
    for chunk, bits in stream:
        rig.send(make_result(chunk, bits << 1), bits << 1)
    merged = rig.take_in()
    for chunk, bitmap in enumerate(rig.bitmaps.tolist()):
        islands = [island for island in range(5) if bitmap >> island & 1]
        part = slice(2 * chunk, min(2 * chunk + 2, 5))
        assert rig.summed[part].tolist() == SENT[islands, part].sum(axis=0).tolist()
    assert rig.receiver.complete is all(bitmap == EXPECTED for bitmap in rig.bitmaps.tolist())
    assert rig.receiver.delivered == sum(bitmap.bit_count() for bitmap in rig.bitmaps.tolist())
    counts = rig.counts()
    assert counts.complete + counts.partial == merged
    assert merged + counts.duplicates + counts.overlaps == len(stream)


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
def test_contributions_are_counted_by_the_way_they_came(rig: Rig, flags: int, counted: dict[str, int]) -> None:
    merged = rig.take(replace(make_bypassed(1, 3), flags=flags), 1 << 3)
    assert merged == ("refused" not in counted)
    assert rig.counts() == Counts(**counted)


def test_results_that_are_sent_again_count_all_their_contributors_as_repaired(rig: Rig) -> None:
    assert rig.result(0, EXPECTED, flags=FLAG_RETRANSMITTED)
    assert not rig.result(1, EXPECTED, flags=FLAG_BYPASSED)
    assert rig.counts() == Counts(complete=1, repaired=4, refused=1)


def test_tags_are_checked_where_there_is_a_key() -> None:
    with closing(Rig(KEY)) as rig:
        rig.send(make_result(0, EXPECTED), EXPECTED, key=bytes(16))
        assert rig.take_in() == 0
        assert rig.result(0, EXPECTED)
        assert rig.counts() == Counts(complete=1, refused=1)


def test_waits_and_the_arrival_are_those_of_the_kernel(rig: Rig) -> None:
    """A receiver that is late says by how much, and a round ends when its last packet comes, not when it is read."""
    rig.take_in()
    began_ns = time.monotonic_ns()
    rig.send(make_result(0, EXPECTED), EXPECTED)
    rig.send(make_result(1, EXPECTED), EXPECTED)
    sent_ns = time.monotonic_ns()
    time.sleep(0.05)
    assert rig.take_in() == 2
    read_ns = rig.receiver.batch_ns
    # The two clocks are compared after the fact.
    assert began_ns - 2 * MS <= rig.receiver.last_arrival_ns <= sent_ns + 2 * MS
    assert read_ns - sent_ns - 2 * MS <= rig.receiver.waits_ns.min() <= rig.receiver.waits_ns.max()
    assert rig.receiver.waits_ns[-1] == read_ns - rig.receiver.last_arrival_ns


def test_waiting_ends_with_news_others_or_the_time(rig: Rig) -> None:
    began_ns = time.monotonic_ns()
    assert not rig.receiver.wait(rig.others, began_ns + 30 * MS, Tell.NONE)
    assert time.monotonic_ns() >= began_ns + 30 * MS
    os.eventfd_write(rig.others, 1)
    assert rig.receiver.wait(rig.others, float("inf"), Tell.NONE)
    os.eventfd_read(rig.others)
    rig.receiver.follow(5, 20)
    for number, chunk in ((20, 0), (21, 1)):
        rig.send(make_result(chunk, EXPECTED, stream=5, number=number), EXPECTED)
    # In their turn: nothing to tell until the time is over.
    assert not rig.receiver.wait(rig.others, time.monotonic_ns() + 20 * MS, Tell.NONE)
    assert (rig.receiver.take_turns(), rig.receiver.told()) == ((22, 0), [])
    assert rig.receiver.take_turns() is None
    rig.send(make_result(2, EXPECTED, stream=5, number=22), EXPECTED)
    assert not rig.receiver.wait(rig.others, float("inf"), Tell.NONE)
    assert rig.receiver.complete
    rig.send(make_result(2, EXPECTED, stream=5, number=40), EXPECTED)
    assert not rig.receiver.wait(rig.others, float("inf"), Tell.NONE)
    [(header, why)] = rig.receiver.told()
    assert (header.number, header.stream, why) == (40, 5, Why.PLACE)


def test_of_what_is_merged_it_tells_as_much_as_it_is_asked(rig: Rig) -> None:
    def told(tell: Tell) -> list[tuple[int, int]]:
        rig.begin()
        for chunk, bitmap in ((0, EXPECTED), (1, 0b00110), (2, EXPECTED), (2, EXPECTED)):
            rig.send(make_result(chunk, bitmap), bitmap)
        rig.receiver.wait(rig.others, 0, tell)
        assert all(why == Why.MERGED for _, why in rig.receiver.told())
        return [(header.chunk, header.bitmap) for header, _ in rig.receiver.told()]

    assert told(Tell.NONE) == []
    # What follows a sum that was given up may bring what that lacks.
    assert told(Tell.GIVEN_UP) == [(1, 0b00110), (2, EXPECTED)]
    assert told(Tell.ALL) == [(0, EXPECTED), (1, 0b00110), (2, EXPECTED)]
