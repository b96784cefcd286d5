"""An edge's resend buffer and a host's watch over its stream, joined by a channel that loses and reorders; no clock."""

import random
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from agents.stream_watch import StreamWatch, ahead, maps
from aggregator.repair import Repairs
from aggregator.results import ResendSettings, ResultStreams
from aggregator.wire.packet import (
    FLAG_RETRANSMITTED,
    HEADER_BYTES,
    Header,
    Kind,
    number_of,
    parse_packet,
    write_header,
    write_packet,
)

HOST, JOB, ISLAND = "10.0.0.1", 7, 3
MS = 1_000_000
HOLD_OFF_NS = 10 * MS
NUMBERS = 1 << 32
QUIET_NS = 3_000 * MS
Loses = Callable[[Header], bool]


class Wire:
    """Stands for a socket: what is sent to it is delivered later, unless it is lost."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def sendto(self, datagram: memoryview, _destination: object) -> None:
        self.sent.append(bytes(datagram))

    def fileno(self) -> int:
        return -1


@dataclass
class Channel:
    """An edge and a host, a millisecond apart; `loses` says what is lost, `jitter_ms` how late packets are."""

    loses: Loses
    first: int = 0
    jitter_ms: float = 0.0
    resend_bytes: int = 1 << 20
    seed: int = 1
    now_ns: int = 1000 * MS
    wanted: set[int] = field(default_factory=set)
    arrived: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.wire = Wire()
        resend = ResendSettings(QUIET_NS, self.resend_bytes, HOLD_OFF_NS, HOLD_OFF_NS // 2, self.first)
        sender = cast(socket.socket, self.wire)
        self.results = ResultStreams(sender, [HOST], ISLAND, 4, 1e9, resend=resend)
        self.repairs = Repairs(sender, self.results, JOB, HOLD_OFF_NS // 2)
        self.watch = StreamWatch(HOLD_OFF_NS)
        self.flying: list[tuple[float, int, bytes]] = []
        self.sequence = 0

    def send(self, chunk: int) -> None:
        """The edge has one more packet for the host."""
        datagram = memoryview(bytearray(HEADER_BYTES + 16))
        write_packet(datagram, Header(Kind.CONTRIBUTION, 1, JOB, 2, 3, 0, chunk, 4, bitmap=2), bytes(16))
        self.results.add_bypassed(datagram, 0)
        self.wanted.add((self.first + len(self.wanted)) % NUMBERS)

    def pass_ms(self, milliseconds: int) -> None:
        for _ in range(milliseconds):
            self.now_ns += MS
            self.repairs.send(self.now_ns)
            self.results.send(self.now_ns)
            self._fly(self.wire.sent)
            for first, bitmap in self.watch.requests(self.now_ns):
                nack = Header(Kind.NACK, ISLAND, JOB, 2, 3, 0, 0, 0, first, bitmap.bit_count(), bitmap)
                nack.stream = self.watch.stream
                out = memoryview(bytearray(HEADER_BYTES))
                write_header(out, nack)
                self._fly([bytes(out)])
            landing = sorted(each for each in self.flying if each[0] <= self.now_ns)
            self.flying = [each for each in self.flying if each[0] > self.now_ns]
            for _, _, datagram in landing:
                self._land(datagram)

    def _fly(self, datagrams: list[bytes]) -> None:
        for datagram in datagrams:
            if not self.loses(parse_packet(memoryview(datagram))):
                self.sequence += 1
                delay_ms = 1 + self.random.random() * self.jitter_ms
                self.flying.append((self.now_ns + delay_ms * MS, self.sequence, datagram))
        datagrams.clear()

    def _land(self, datagram: bytes) -> None:
        header = parse_packet(memoryview(datagram))
        match header.kind:
            case Kind.NACK:
                assert self.repairs.request(memoryview(datagram), HOST, self.now_ns) == "admitted"
            case Kind.HEARTBEAT:
                self.watch.heartbeat(header, self.now_ns)
            case Kind.GONE:
                self.watch.gone(header)
            case _:
                self.arrived.append(number_of(memoryview(datagram)))
                self.watch.arrived(header, self.now_ns)

    def carry(self, packets: int, burst: int = 1) -> None:
        """Send so many packets, `burst` in each millisecond, and wait until all is quiet."""
        for chunk in range(packets):
            self.send(chunk)
            if chunk % burst == burst - 1:
                self.pass_ms(1)
        self.pass_ms(1000)


def is_data(header: Header) -> bool:
    return header.kind is Kind.CONTRIBUTION


def first_copies(loses: Loses) -> Loses:
    """Loses only what has not been sent before."""
    return lambda header: is_data(header) and not header.flags & FLAG_RETRANSMITTED and loses(header)


def at_random(share: float) -> Loses:
    rng = random.Random(5)
    return lambda _header: rng.random() < share


def the_first(count: int, loses: Loses) -> Loses:
    """Loses the first `count` of those that it is about."""
    left = [count]

    def lose(header: Header) -> bool:
        left[0] -= loses(header)
        return loses(header) and left[0] >= 0

    return lose


def either(*all_of: Loses) -> Loses:
    # Each is asked, since some count.
    return lambda header: sum(loses(header) for loses in all_of) > 0


LOSSES: dict[str, Loses] = {
    "one in five of everything": at_random(0.2),
    "a burst": first_copies(lambda header: 100 <= header.chunk < 180),
    "the first window": first_copies(lambda header: header.chunk < 64),
    "all but the last": first_copies(lambda header: header.chunk < 299),
    "the last of each round": first_copies(lambda header: header.chunk % 50 == 49),
    "everything the first time": first_copies(lambda header: True),
    "requests": either(
        first_copies(lambda header: header.chunk % 10 == 0), the_first(5, lambda header: header.kind is Kind.NACK)
    ),
    "repairs": either(
        first_copies(lambda header: header.chunk % 10 == 0),
        the_first(60, lambda header: bool(header.flags & FLAG_RETRANSMITTED)),
    ),
    "heartbeats": either(
        first_copies(lambda header: header.chunk >= 298), the_first(4, lambda header: header.kind is Kind.HEARTBEAT)
    ),
}


@pytest.mark.parametrize("first", [0, NUMBERS - 150])
@pytest.mark.parametrize("what", LOSSES)
def test_whatever_is_lost_comes_again(what: str, first: int) -> None:
    channel = Channel(LOSSES[what], first)
    channel.carry(300)
    assert set(channel.arrived) == channel.wanted
    assert channel.watch.counts.gone == 0
    lost = {"one in five of everything": 30}.get(what, 2)
    assert channel.watch.counts.missed >= lost
    assert channel.watch.next_ns() is None


@pytest.mark.parametrize("jitter_ms", [2, 9, 18, 60])
def test_reordering_alone_is_hardly_ever_repaired(jitter_ms: float) -> None:
    channel = Channel(lambda _header: False, NUMBERS - 500, jitter_ms)
    channel.carry(20_000, burst=2)
    assert set(channel.arrived) == channel.wanted
    assert channel.watch.counts.reordered > 1000
    assert channel.repairs.counts()["repairs"] <= 0.001 * len(channel.wanted)
    assert len(channel.arrived) - len(channel.wanted) == channel.repairs.counts()["repairs"]


def test_what_the_edge_has_no_more_is_given_up() -> None:
    channel = Channel(first_copies(lambda header: 10 <= header.chunk < 210), resend_bytes=20 * 192)
    channel.carry(300, burst=30)
    assert set(channel.arrived) < channel.wanted
    assert channel.watch.counts.gone == 200
    assert channel.watch.next_ns() is None
    assert channel.repairs.counts()["repairs"] == 0


def test_repairs_leave_half_of_the_line_to_others() -> None:
    channel = Channel(first_copies(lambda header: header.chunk < 3000), resend_bytes=1 << 22)
    channel.results.state.ns_per_byte = 1e9 / 1e6  # of a megabyte a second
    channel.results.state.ahead_ns = 5 * MS
    for chunk in range(5000):
        channel.send(chunk)
        if chunk % 5 == 4:
            channel.pass_ms(1)
    repairs = channel.repairs.counts()
    assert repairs["repair_bytes"] <= 0.5 * 1e6 * 1.0 + 5000 + 200
    channel.pass_ms(3000)
    assert set(channel.arrived) == channel.wanted


def test_a_new_stream_is_watched_from_its_beginning() -> None:
    old, new = Channel(lambda _header: False), Channel(first_copies(lambda header: header.chunk < 5))
    old.carry(100)
    new.watch = old.watch
    new.carry(20)
    assert set(new.arrived) == new.wanted
    # A straggler of the old stream changes nothing.
    header = Header(Kind.RESULT, ISLAND, JOB, 2, 3, 0, 0, 0, number=4000, stream=old.results.state.stream)
    new.watch.arrived(header, new.now_ns)
    assert new.watch.next_ns() is None
    assert new.watch.stream == new.results.state.stream


def test_what_is_forgotten_is_not_asked_for() -> None:
    channel = Channel(first_copies(lambda header: header.chunk == 5))
    for chunk in range(20):
        channel.send(chunk)
    channel.pass_ms(5)
    assert channel.watch.next_ns() is not None
    channel.watch.forget()
    channel.pass_ms(500)
    assert channel.repairs.counts()["nacks"] == 0


def test_serial_arithmetic() -> None:
    assert ahead(5, 3) == 2
    assert ahead(3, 5) == -2
    assert ahead(1, NUMBERS - 1) == 2
    assert ahead(NUMBERS - 1, 1) == -2


def test_maps_cover_64_numbers_each() -> None:
    assert maps([], NUMBERS) == []
    assert maps([5, 6, 68, 69], NUMBERS) == [(5, 1 | 2 | 1 << 63), (69, 1)]
    assert maps([NUMBERS - 2, 1], NUMBERS) == [(NUMBERS - 2, 0b1001)]
