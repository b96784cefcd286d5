"""The life of one packet: everything that captures show of it, and of what became of it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

import numpy as np
from numpy.typing import NDArray

from aggregator.wire.packet import MAP_BITS, Reason
from testbed.analyze.addresses import Addresses
from testbed.analyze.captures import Captures, Point, Sightings
from testbed.analyze.flows import CONTRIBUTION, FETCH, FETCHED, GONE, NACK, REPAIR, RESULT, classes
from testbed.errors import TestbedError

_ANSWERS = (RESULT, RESULT + REPAIR)


@dataclass(frozen=True)
class Wanted:
    """A contribution of a source to a round: `source` an island's name or its contributor id."""

    source: str
    round: int
    chunk: int
    shard: int = 0

    def __str__(self) -> str:
        shard = f", shard {self.shard}" if self.shard else ""
        return f"contribution of {self.source}, round {self.round}, chunk {self.chunk}{shard}"


@dataclass(frozen=True)
class Sight:
    """One sighting of a packet that has to do with what is wanted. `peer`: the node at the other end of the link.

    `holds`: the wanted contribution is in it.
    """

    time_ns: int
    point: Point
    peer: str
    identity: int
    kind: int
    what: str
    holds: bool


@dataclass(frozen=True)
class _Seen:
    """A sighting as it was captured."""

    time_ns: int
    point: Point
    identity: int
    kind: int
    header: np.void
    source_ip: int
    target_ip: int


def parse_wanted(text: str) -> Wanted:
    """SOURCE/ROUND/CHUNK or SOURCE/ROUND/CHUNK/SHARD, numbers as in the packets. Raises TestbedError."""
    match = re.fullmatch(r"([a-z0-9]+)/(\d+)/(\d+)(?:/(\d+))?", text)
    if match is None:
        raise TestbedError(f"--explain {text}: not SOURCE/ROUND/CHUNK, for example nyc/3/17 (as in lost.csv)")
    return Wanted(match.group(1), int(match.group(2)), int(match.group(3)), int(match.group(4) or 0))


def explain(captures: Captures, wanted: Wanted) -> list[Sight]:
    """All sightings of the contribution, of the results that it is in or should have been in, and of requests and
    repairs, in order of time.

    Raises TestbedError if the captures have nothing of it.
    """
    parts, requests, sources, names = _collect(captures, wanted)
    mine = sum(1 << source for source in sources)
    found: list[tuple[_Seen, bool]] = []
    numbers: set[tuple[int, int, int]] = set()  # (host, stream, number) of the results
    senders: set[str] = set()  # a host may send from several addresses
    for seen in parts:
        if int(seen.header["bitmap"]) & mine:
            found.append((seen, True))
            if seen.kind in _ANSWERS:
                numbers.add((seen.target_ip, int(seen.header["stream"]), int(seen.header["number"])))
            elif seen.kind == CONTRIBUTION:
                senders.add(_name(seen.source_ip, names))
        elif seen.kind in _ANSWERS and int(seen.header["reason"]) == Reason.TIMEOUT:
            found.append((seen, False))
    if not any(holds for _, holds in found):
        raise TestbedError(f"the captures have no {wanted}; where only core links were captured, give a contributor id")
    for seen in requests:
        if seen.kind == FETCH:
            if _fetches(seen.header, wanted) and _name(seen.target_ip, names) in senders:
                found.append((seen, False))
        elif numbers & _numbers(seen.header, seen.source_ip if seen.kind == NACK else seen.target_ip):
            found.append((seen, False))
    sights = [
        Sight(
            seen.time_ns,
            seen.point,
            seen.point.peer.split(":")[0],
            seen.identity,
            seen.kind,
            _words(seen, holds, names),
            holds,
        )
        for seen, holds in found
    ]
    return sorted(sights, key=lambda sight: (sight.time_ns, sight.point.outbound))


def _collect(captures: Captures, wanted: Wanted) -> tuple[list[_Seen], list[_Seen], set[int], dict[int, str]]:
    """Sightings of all packets of the chunk, and of all requests; the source's contributor ids; hosts by address."""
    parts: list[_Seen] = []
    requests: list[_Seen] = []
    sources: set[int] = {int(wanted.source)} if wanted.source.isdigit() else set()
    names: dict[int, str] = {}
    addresses = Addresses(captures)
    for _, everything, _ in captures.sightings():
        sightings = addresses.without_strays(everything)
        names |= _names(captures, sightings)
        packets, header = sightings.packets, sightings.packets.header
        kind = classes(header)
        here = (header["round"] == wanted.round) & (header["shard"] == wanted.shard)
        mine = here & (header["chunk"] == wanted.chunk) & np.isin(kind, (CONTRIBUTION, FETCHED, *_ANSWERS))
        asking = np.isin(kind, (NACK, GONE)) | (here & (kind == FETCH))
        for row in np.flatnonzero(mine | asking).tolist():
            seen = _Seen(
                int(sightings.time_ns[row]),
                captures.points[int(sightings.point[row])],
                int(packets.identity[row]),
                int(kind[row]),
                header[row].copy(),
                int(packets.source_ip[row]),
                int(packets.target_ip[row]),
            )
            (parts if mine[row] else requests).append(seen)
            if seen.kind == CONTRIBUTION and seen.point.island == wanted.source and _leaves_site(seen.point):
                sources.add(int(seen.header["source"]))
    return parts, requests, sources, names


def losses(captures: Captures, sights: Iterable[Sight]) -> dict[int, list[Sight]]:
    """The sightings at links' beginnings that have none at their ends, by identity."""
    seen: dict[tuple[int, int], int] = {}
    by_point: dict[tuple[int, int], list[Sight]] = {}
    for sight in sights:
        key = sight.identity, sight.point.number
        seen[key] = seen.get(key, 0) + 1
        by_point.setdefault(key, []).append(sight)
    lost: dict[int, list[Sight]] = {}
    for (identity, number), there in by_point.items():
        peer = captures.peers.get(number)
        if peer is not None and seen.get((identity, peer), 0) < len(there):
            lost.setdefault(identity, []).extend(there[seen.get((identity, peer), 0) :])
    return lost


def narrate(captures: Captures, wanted: Wanted, sights: list[Sight]) -> list[str]:
    """The life of the packet, a line for each sighting; times are ms since the first."""
    gone = {id(sight) for lost in losses(captures, sights).values() for sight in lost}
    lines = [str(wanted)]
    for sight in sights:
        at = f"{(sight.time_ns - sights[0].time_ns) / 1e6:12.3f} ms  {sight.point.name:<16}"
        way = f"→ {sight.peer}" if sight.point.outbound else f"← {sight.peer}"
        end = f"   LOST on link {sight.point.node}>{sight.peer}" if id(sight) in gone else ""
        lines.append(f"{at} {way:<12} {sight.what}{end}")
    came = (sight for sight in sights if sight.point.is_host and not sight.point.outbound and sight.holds)
    delivered = sorted({sight.point.island for sight in came if sight.kind in (*_ANSWERS, FETCHED)})
    lines.append(f"delivered to hosts of: {', '.join(delivered) or 'no island that was captured'}")
    return lines


def _leaves_site(point: Point) -> bool:
    """Whether contributions that are seen there are those of the node's own island: a router passes on others' too."""
    return (point.is_host and point.outbound) or (point.kind == "wire" and point.outbound == point.is_edge)


def _numbers(header: NDArray[np.void] | np.void, host: int) -> set[tuple[int, int, int]]:
    bitmap, first, stream = int(header["bitmap"]), int(header["number"]), int(header["stream"])
    return {(host, stream, (first + bit) % (1 << 32)) for bit in range(MAP_BITS) if bitmap >> bit & 1}


def _names(captures: Captures, sightings: Sightings) -> dict[int, str]:
    """Hosts by the addresses from which they send."""
    pairs = np.unique(sightings.packets.source_ip.astype(np.int64) << 32 | sightings.point)
    points = ((pair >> 32, captures.points[pair & 0xFFFFFFFF]) for pair in pairs.tolist())
    return {address: point.node for address, point in points if point.is_host and point.outbound}


def _fetches(header: np.void, wanted: Wanted) -> bool:
    bit = wanted.chunk - int(header["chunk"])
    return 0 <= bit < MAP_BITS and bool(int(header["bitmap"]) >> bit & 1)


def _name(address: int, names: Mapping[int, str]) -> str:
    return names.get(address, str(IPv4Address(address)))


def _words(seen: _Seen, holds: bool, names: Mapping[int, str]) -> str:
    header, kind = seen.header, seen.kind
    number, stream, asked = int(header["number"]), int(header["stream"]), int(header["bitmap"]).bit_count()
    target = _name(seen.target_ip, names)
    if kind == CONTRIBUTION:
        return f"contribution to {target}"
    if kind == FETCHED:
        return f"contribution again, fetched by {target}"
    if kind in _ANSWERS:
        again = "again, " if kind & REPAIR else ""
        bypassed = int(header["kind"]) == CONTRIBUTION
        reason = Reason(int(header["reason"])).name.lower() if int(header["reason"]) in set(Reason) else "?"
        without = "" if holds else " without it"
        about = "bypassed contribution" if bypassed else f"result ({reason}) of {int(header['contributors'])}{without}"
        return f"{about}, {again}number {number} of stream {stream:x}"
    if kind == FETCH:
        asker = _name(seen.source_ip, names)
        return f"fetch by {asker}, with {asked - 1} others" if asked > 1 else f"fetch by {asker}"
    return f"{'NACK' if kind == NACK else 'gone'} for {asked} from number {number} on, stream {stream:x}"
