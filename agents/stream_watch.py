"""What has come of the stream from the edge, what is missing, and when to ask for it. No sockets and no clock."""

from collections.abc import Iterable
from dataclasses import dataclass

from agents.timing import Reordering, RoundTrip
from aggregator.wire.packet import FLAG_RETRANSMITTED, MAP_BITS, Header

_NUMBERS = 1 << 32
_MOST_MISSING = 4096
_REQUESTS_AT_ONCE = 16
_PAST_STREAMS = 8
_GUESSED_ROUND_TRIPS = 5  # in hold-offs


@dataclass(slots=True)
class _Missing:
    noticed_ns: int
    asked: int = 0
    asked_ns: int = 0
    due_ns: int = 0  # once it has been asked for


@dataclass
class WatchCounts:
    """`missed`: numbers that did not come in their turn; `reordered` of them came by themselves after all.

    `requests` were sent for them; `gone`: nobody has them any more.
    """

    missed: int = 0
    reordered: int = 0
    requests: int = 0
    gone: int = 0


def ahead(number: int, of: int) -> int:
    """How far a number is ahead of another one in serial arithmetic; negative: it is behind."""
    return (number - of + _NUMBERS // 2) % _NUMBERS - _NUMBERS // 2


def maps(numbers: Iterable[int], modulus: int) -> list[tuple[int, int]]:
    """Numbers in ascending serial order as (first, bitmap of the 64 from it on)."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        bit = (number - found[-1][0]) % modulus if found else MAP_BITS
        if bit < MAP_BITS:
            found[-1] = found[-1][0], found[-1][1] | 1 << bit
        else:
            found.append((number, 1))
    return found


class StreamWatch:
    """The receiving end of one edge's numbered stream."""

    def __init__(self, hold_off_ns: int) -> None:
        """`hold_off_ns`: a missing packet is waited for at least so long."""
        self.counts = WatchCounts()
        self._round_trip = RoundTrip(_GUESSED_ROUND_TRIPS * hold_off_ns, hold_off_ns)
        self._reordering = Reordering(hold_off_ns)
        self.stream = 0
        self._past: list[int] = []
        self._next = 0  # the number that is in turn
        self._missing: dict[int, _Missing] = {}
        self._due_ns: int | None = None

    @property
    def next(self) -> int:
        """The number of the stream whose turn it is."""
        return self._next

    def in_turn(self, next_number: int, trailing_edge: int) -> None:
        """Packets up to the one before `next_number` have come, each in its turn; the last one's trailing edge.

        The same as `arrived` of each of them, if no trailing edge is before that of the packet ahead of it.
        """
        self._next = next_number
        self._let_go(trailing_edge)

    def arrived(self, header: Header, now_ns: int) -> None:
        """A packet of the stream has come: a result, or a bypassed contribution."""
        if not self._follow(header):
            return
        found: _Missing | None = self._missing.pop(header.number, None)
        if found is not None:
            if not header.flags & FLAG_RETRANSMITTED:
                self.counts.reordered += 1
                self._reordering.observe(now_ns - found.noticed_ns)
            elif found.asked == 1:
                self._round_trip.observe(now_ns - found.asked_ns)
        self._notice(header.number, now_ns)
        if ahead(header.number, self._next) == 0:
            self._next = (header.number + 1) % _NUMBERS
        self._let_go(header.trailing_edge)

    def heartbeat(self, header: Header, now_ns: int) -> None:
        """The edge says up to which number it has sent."""
        if self._follow(header):
            self._notice((header.number + 1) % _NUMBERS, now_ns)
            self._let_go(header.trailing_edge)

    def gone(self, header: Header) -> None:
        """The edge does not have these any more."""
        if self._follow(header):
            for bit in range(MAP_BITS):
                number = (header.number + bit) % _NUMBERS
                if header.bitmap >> bit & 1 and number in self._missing:
                    del self._missing[number]
                    self.counts.gone += 1
            self._let_go(header.trailing_edge)

    def _follow(self, header: Header) -> bool:
        """Whether it is of the stream that is watched; the edge's newest is."""
        if header.stream == self.stream:
            return True
        if header.stream == 0 or header.stream in self._past:
            return False
        self._past = [*self._past, self.stream][-_PAST_STREAMS:]
        self.stream = header.stream
        self.forget()
        # What the edge still has is all that it has sent, unless that is long ago.
        self._next = header.trailing_edge
        return True

    def _notice(self, end: int, now_ns: int) -> None:
        """All numbers before `end` have been sent: what has not come of them is missing."""
        count = ahead(end, self._next)
        if count <= 0:
            return
        self.counts.missed += count
        if count > _MOST_MISSING:
            self.counts.gone += count - _MOST_MISSING
            self._next = (end - _MOST_MISSING) % _NUMBERS
        due_ns = now_ns + self._reordering.hold_off_ns
        while self._next != end:
            self._missing[self._next] = _Missing(now_ns)
            self._next = (self._next + 1) % _NUMBERS
        while len(self._missing) > _MOST_MISSING:
            del self._missing[next(iter(self._missing))]
            self.counts.gone += 1
        if self._due_ns is None or due_ns < self._due_ns:
            self._due_ns = due_ns

    def _let_go(self, trailing_edge: int) -> None:
        """What is before the trailing edge nobody has any more. The oldest are the first."""
        while self._missing:
            oldest = next(iter(self._missing))
            if ahead(oldest, trailing_edge) >= 0:
                return
            del self._missing[oldest]
            self.counts.gone += 1

    def next_ns(self) -> int | None:
        """When `requests` has something to say, or earlier; None: not before something arrives."""
        return self._due_ns

    def requests(self, now_ns: int) -> list[tuple[int, int]]:
        """What to ask for now, as (first number, bitmap of the 64 from it on)."""
        if self._due_ns is None or now_ns < self._due_ns:
            return []
        due = [number for number, missing in self._missing.items() if self._due(missing) <= now_ns]
        asking = maps(due, _NUMBERS)
        for first, bitmap in asking[:_REQUESTS_AT_ONCE]:
            for bit in range(MAP_BITS):
                if bitmap >> bit & 1:
                    missing = self._missing[(first + bit) % _NUMBERS]
                    missing.asked += 1
                    missing.asked_ns = now_ns
                    missing.due_ns = now_ns + self._round_trip.timeout_ns(missing.asked)
        if len(asking) > _REQUESTS_AT_ONCE:
            self._due_ns = now_ns + self._reordering.hold_off_ns
        else:
            self._due_ns = min(map(self._due, self._missing.values()), default=None)
        asking = asking[:_REQUESTS_AT_ONCE]
        self.counts.requests += len(asking)
        return asking

    def _due(self, missing: _Missing) -> int:
        """When to ask for it; how long to hold off may have been learnt since it was noticed."""
        return missing.due_ns if missing.asked else missing.noticed_ns + self._reordering.hold_off_ns

    def forget(self) -> None:
        """Nothing that is missing is wanted any more."""
        self._missing.clear()
        self._due_ns = None
