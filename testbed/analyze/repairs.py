"""What was asked for again, and when it came: NACKs and fetches, and the packets that answer them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from aggregator.wire.packet import MAP_BITS
from testbed.analyze.captures import Captures, Sightings
from testbed.analyze.flows import FETCH, FETCHED, GONE, NACK, REPAIR, RESULT
from testbed.analyze.results import Recovery

_WRAP = 1 << 32
_REQUESTS = (NACK, FETCH)
_ANSWERS = (RESULT + REPAIR, FETCHED)

Key = tuple[int, ...]
Name = TypeVar("Name")


@dataclass(frozen=True)
class Pair:
    """Who asks whom, by their addresses; `fetch`: a host another island's host, else a host its edge."""

    asker: int
    asked: int
    fetch: bool


@dataclass
class Request:
    """A packet that was asked for, at `asked_ns` for the first time."""

    pair: Pair
    asked_ns: int
    repaired_ns: int | None = None
    gone: bool = False


@dataclass
class Repairs:
    """All packets that hosts asked for again, by what they are.

    Requests and answers are counted, and timed, at the interfaces of hosts and on the edges' access links; at the edges
    alone where no host was captured.
    """

    captures: Captures
    requests: dict[Key, Request] = field(default_factory=dict)
    _islands: dict[int, str] = field(default_factory=dict)
    _recoveries: dict[Pair, Recovery] = field(default_factory=dict)

    def __post_init__(self) -> None:
        points = self.captures.points
        self._host = np.array([point.is_host for point in points], bool)
        self._edge = np.array([point.is_edge and point.kind == "access" for point in points], bool)
        self._hosts_side = self._host if self._host.any() else self._edge

    def add(self, sightings: Sightings, kind: NDArray[np.int64]) -> None:
        """Note sightings; `kind` has their classes."""
        at = sightings.point
        interesting = np.isin(kind, (*_REQUESTS, *_ANSWERS, GONE)) & (self._host[at] | self._edge[at])
        for row in np.flatnonzero(interesting & ~sightings.packets.bad).tolist():
            self._note(sightings, row, int(kind[row]))

    def _note(self, sightings: Sightings, row: int, kind: int) -> None:
        packets, number = sightings.packets, int(sightings.point[row])
        header, point = packets.header[row], self.captures.points[number]
        source, target = int(packets.source_ip[row]), int(packets.target_ip[row])
        from_host = point.outbound == point.is_host
        self._islands.setdefault(source if from_host else target, point.island)
        asking, fetch = kind in _REQUESTS, kind in {FETCH, FETCHED}
        pair = Pair(source, target, fetch) if asking else Pair(target, source, fetch)
        recovery = self._recoveries.setdefault(pair, Recovery())
        if asking == from_host and self._hosts_side[number]:
            self._note_at_asker(recovery, header, kind, pair, int(sightings.time_ns[row]))
        if self._edge[number] if not fetch else asking != from_host and self._hosts_side[number]:
            recovery.requests_received += asking
            recovery.repairs_sent += kind in _ANSWERS

    def _note_at_asker(self, recovery: Recovery, header: np.void, kind: int, pair: Pair, time_ns: int) -> None:
        """Note a request that leaves who asks, or an answer that comes there."""
        if kind in _REQUESTS:
            recovery.requests += 1
            for key in _asked(pair, header):
                self.requests.setdefault(key, Request(pair, time_ns))
        elif kind == GONE:
            for key in _asked(pair, header):
                if key in self.requests:
                    self.requests[key].gone = True
        else:
            recovery.repairs += 1
            request = self.requests.get(_answered(pair, header))
            if request is not None and request.repaired_ns is None:
                request.repaired_ns = time_ns

    def finish(self) -> None:
        """Sum up what was asked for; call it once, when all has been noted."""
        for request in self.requests.values():
            recovery = self._recoveries[request.pair]
            recovery.wanted += 1
            recovery.gone += request.gone
            if request.repaired_ns is None:
                recovery.unrepaired += 1
            else:
                recovery.repaired += 1
                recovery.latencies_ms.append((request.repaired_ns - request.asked_ns) / 1e6)
        for recovery in self._recoveries.values():
            recovery.latencies_ms.sort()

    def total(self) -> Recovery:
        """All of it."""
        return _sum(self._recoveries.values())

    def of_edges(self) -> dict[str, Recovery]:
        """What hosts asked their edges for, by their islands."""
        return _sums((self._islands.get(pair.asker), each) for pair, each in self._recoveries.items() if not pair.fetch)

    def of_sources(self, sources: Mapping[int, int]) -> dict[tuple[int, str], Recovery]:
        """What hosts asked other islands' hosts for, by these' contributor id and their own island.

        `sources`: contributor ids by address.
        """
        return _sums(
            (
                (sources[pair.asked], self._islands[pair.asker])
                if pair.asked in sources and pair.asker in self._islands
                else None,
                each,
            )
            for pair, each in self._recoveries.items()
            if pair.fetch
        )

    def first_fetched(self, sources: Mapping[int, int]) -> tuple[int, int, int, int] | None:
        """What was fetched first: its source's contributor id, round, chunk and shard."""
        for key, request in self.requests.items():
            pair = request.pair
            if pair.fetch and pair.asked in sources and request.repaired_ns is not None:
                _, _, round_number, shard, chunk = key
                return sources[pair.asked], round_number, chunk, shard
        return None

    def times_ns(self) -> list[tuple[int, float]]:
        """When each packet that was asked for came, and its latency in ms; in order of time."""
        return sorted(
            (request.repaired_ns, (request.repaired_ns - request.asked_ns) / 1e6)
            for request in self.requests.values()
            if request.repaired_ns is not None
        )


def _sum(recoveries: Iterable[Recovery]) -> Recovery:
    total = Recovery()
    for each in recoveries:
        total.add(each)
    return total


def _sums(named: Iterable[tuple[Name | None, Recovery]]) -> dict[Name, Recovery]:
    found: dict[Name, Recovery] = {}
    for name, each in named:
        if name is not None:
            found.setdefault(name, Recovery()).add(each)
    return found


def _asked(pair: Pair, header: np.void) -> list[Key]:
    """What a NACK or a fetch asks for, or a `gone` is about."""
    bitmap = int(header["bitmap"])
    wanted = [bit for bit in range(MAP_BITS) if bitmap >> bit & 1]
    if pair.fetch:
        place = (pair.asker, pair.asked, int(header["round"]), int(header["shard"]))
        return [(*place, int(header["chunk"]) + bit) for bit in wanted]
    return [(pair.asker, int(header["stream"]), (int(header["number"]) + bit) % _WRAP) for bit in wanted]


def _answered(pair: Pair, header: np.void) -> Key:
    """What a repair is the answer to."""
    if pair.fetch:
        return (pair.asker, pair.asked, int(header["round"]), int(header["shard"]), int(header["chunk"]))
    return (pair.asker, int(header["stream"]), int(header["number"]))
