"""What a host fetches of a round from the hosts that sent it: which contributions, and when. No sockets and no clock.

A contribution is wanted when a sum has been given up without it, or when the round should be over and it is not there.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents.stream_watch import maps
from agents.timing import RoundTrip

NEVER_NS = (1 << 63) - 1
_WINDOW = 96  # contributions on their way at a time, so that they fit the queues that they meet
_CHUNKS = 1 << 32
_GUESSED_ROUND_TRIPS = 50  # in hold-offs: what has not been measured may be far


@dataclass(slots=True)
class _Asked:
    due_ns: int
    asked_ns: int
    times: int = 0


class RoundTrips:
    """Measured round trips to the other islands; they outlast a round."""

    def __init__(self, hold_off_ns: int) -> None:
        self._hold_off_ns = hold_off_ns
        self._round_trips: dict[int, RoundTrip] = {}

    def to(self, island: int) -> RoundTrip:
        if island not in self._round_trips:
            self._round_trips[island] = RoundTrip(_GUESSED_ROUND_TRIPS * self._hold_off_ns, self._hold_off_ns)
        return self._round_trips[island]


class Fetching:
    """What one round lacks of the contributions that are `expected` (a bitmap) in each of its chunks."""

    def __init__(self, expected: int, have: NDArray[np.uint64], hold_off_ns: int, round_trips: RoundTrips) -> None:
        """`have`: bitmaps of what is in each chunk's sum, kept up to date by who merges.

        At `all_due_ns` everything is wanted that is not there; what `given_up` names, `hold_off_ns` later.
        """
        self.all_due_ns = NEVER_NS
        self.requests_sent = 0
        self._expected = expected
        self._have = have
        self._hold_off_ns = hold_off_ns
        self._round_trips = round_trips
        # By (island, chunk). What is held is not asked for yet: it has a due time, and then waits for the window.
        self._held: dict[tuple[int, int], int] = {}
        self._asked: dict[tuple[int, int], _Asked] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is about to be asked for, or has been: what arrives then needs not be told of."""
        return not self._held and not self._asked

    def arrived(self, chunk: int, bitmap: int, now_ns: int, fetched: bool) -> None:
        """These contributors are in the chunk's sum now, and were not before."""
        for island in _bits(bitmap):
            self._held.pop((island, chunk), None)
            asked = self._asked.pop((island, chunk), None)
            if asked is not None and fetched and asked.times == 1:
                self._round_trips.to(island).observe(now_ns - asked.asked_ns)

    def given_up(self, chunk: int, now_ns: int) -> None:
        """The edge has given up a sum of the chunk: what it lacks will not come, unless it is on its way already."""
        self._hold(chunk, now_ns + self._hold_off_ns)

    def _hold(self, chunk: int, due_ns: int) -> None:
        for island in _bits(self._expected & ~int(self._have[chunk])):
            if (island, chunk) not in self._asked:
                self._held.setdefault((island, chunk), due_ns)

    def next_ns(self) -> int:
        """When `requests` has something to say; the far future: not before something arrives."""
        due_ns = min((asked.due_ns for asked in self._asked.values()), default=NEVER_NS)
        if self._held and len(self._asked) < _WINDOW:
            due_ns = min(due_ns, next(iter(self._held.values())))
        return min(due_ns, self.all_due_ns)

    def requests(self, now_ns: int) -> list[tuple[int, int, int]]:
        """What to ask for now, as (island, first chunk, bitmap of the 64 from it on)."""
        if now_ns >= self.all_due_ns:
            self.all_due_ns = NEVER_NS
            for chunk in range(len(self._have)):
                self._hold(chunk, now_ns)
        asking = [key for key, asked in self._asked.items() if asked.due_ns <= now_ns]
        while self._held and len(self._asked) < _WINDOW:
            key, due_ns = next(iter(self._held.items()))
            if due_ns > now_ns:
                break
            del self._held[key]
            self._asked[key] = _Asked(due_ns, now_ns)
            asking.append(key)
        by_island: dict[int, list[int]] = {}
        for island, chunk in sorted(asking):
            asked = self._asked[island, chunk]
            asked.times += 1
            asked.asked_ns = now_ns
            asked.due_ns = now_ns + self._round_trips.to(island).timeout_ns(asked.times)
            by_island.setdefault(island, []).append(chunk)
        wanted = [
            (island, first, bitmap) for island, chunks in by_island.items() for first, bitmap in maps(chunks, _CHUNKS)
        ]
        self.requests_sent += len(wanted)
        return wanted


def _bits(bitmap: int) -> Iterator[int]:
    while bitmap:
        yield (bitmap & -bitmap).bit_length() - 1
        bitmap &= bitmap - 1
