"""The life of one packet: everything that captures show of it, and of what became of it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address

import numpy as np
from numpy.typing import NDArray

from aggregator.wire.packet import MAP_BITS, Reason
from testbed.analyze.captures import Captures, Point
from testbed.analyze.flows import CONTRIBUTION, FETCH, FETCHED, GONE, NACK, REPAIR, RESULT, classes
from testbed.errors import TestbedError

_ANSWERS = (RESULT, RESULT + REPAIR)
_REQUESTS = (NACK, GONE, FETCH)


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
    """One sighting of a packet that has to do with what is wanted. `peer`: the node at the other end of the link."""

    time_ns: int
    point: Point
    peer: str
    identity: int
    kind: int
    what: str


def parse_wanted(text: str) -> Wanted:
    """SOURCE/ROUND/CHUNK or SOURCE/ROUND/CHUNK/SHARD, numbers as in the packets. Raises TestbedError."""
    match = re.fullmatch(r"([a-z0-9]+)/(\d+)/(\d+)(?:/(\d+))?", text)
    if match is None:
        raise TestbedError(f"--explain {text}: not SOURCE/ROUND/CHUNK, for example nyc/3/17 (as in lost.csv)")
    return Wanted(match.group(1), int(match.group(2)), int(match.group(3)), int(match.group(4) or 0))


def explain(captures: Captures, wanted: Wanted) -> list[Sight]:
    """All sightings of the contribution, of the results that it is in, and of requests and repairs, in order of time.

    Raises TestbedError if the captures have nothing of it.
    """
    found: list[Sight] = []
    requests: list[tuple[Sight, np.void, int, int]] = []
    numbers: set[tuple[int, int, int]] = set()  # (host, stream, number) of the results
    sources: set[int] = {int(wanted.source)} if wanted.source.isdigit() else set()
    candidates: list[tuple[Sight, np.void, int, int]] = []
    for _, sightings, _ in captures.sightings():
        packets, header = sightings.packets, sightings.packets.header
        kind = classes(header)
        here = (header["round"] == wanted.round) & (header["shard"] == wanted.shard)
        mine = here & (header["chunk"] == wanted.chunk) & np.isin(kind, (CONTRIBUTION, FETCHED, *_ANSWERS))
        asking = np.isin(kind, _REQUESTS)
        for row in np.flatnonzero(mine | asking).tolist():
            point = captures.points[int(sightings.point[row])]
            ends = int(packets.source_ip[row]), int(packets.target_ip[row])
            sight = Sight(
                int(sightings.time_ns[row]),
                point,
                point.peer.split(":")[0],
                int(packets.identity[row]),
                int(kind[row]),
                _words(int(kind[row]), header[row], ends[1]),
            )
            (candidates if mine[row] else requests).append((sight, header[row].copy(), *ends))
            if kind[row] == CONTRIBUTION and mine[row] and point.island == wanted.source and _leaves_site(point):
                sources.add(int(header["source"][row]))
    for sight, fields, _, target in candidates:
        if not any(int(fields["bitmap"]) >> source & 1 for source in sources):
            continue
        found.append(sight)
        if sight.kind in _ANSWERS:
            numbers.add((target, int(fields["stream"]), int(fields["number"])))
    senders = {source for sight, _, source, _ in candidates if sight.kind == CONTRIBUTION and sight in found}
    for sight, fields, source, target in requests:
        if sight.kind == FETCH:
            asked = int(fields["chunk"]) <= wanted.chunk < int(fields["chunk"]) + MAP_BITS
            bit = wanted.chunk - int(fields["chunk"])
            place = (int(fields["round"]), int(fields["shard"])) == (wanted.round, wanted.shard)
            if asked and place and int(fields["bitmap"]) >> bit & 1 and target in senders:
                found.append(sight)
        elif numbers & _numbers(fields, source if sight.kind == NACK else target):
            found.append(sight)
    if not found:
        raise TestbedError(f"the captures have no {wanted}; where only core links were captured, give a contributor id")
    return sorted(found, key=lambda sight: (sight.time_ns, sight.point.outbound))


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
    came = (sight for sight in sights if sight.point.is_host and not sight.point.outbound)
    delivered = sorted({sight.point.island for sight in came if sight.kind in (*_ANSWERS, FETCHED)})
    lines.append(f"delivered to hosts of: {', '.join(delivered) or 'no island that was captured'}")
    return lines


def _leaves_site(point: Point) -> bool:
    """Whether contributions that are seen there are those of the node's own island: a router passes on others' too."""
    return (point.is_host and point.outbound) or (point.kind == "wire" and point.outbound == point.is_edge)


def _numbers(header: NDArray[np.void] | np.void, host: int) -> set[tuple[int, int, int]]:
    bitmap, first, stream = int(header["bitmap"]), int(header["number"]), int(header["stream"])
    return {(host, stream, (first + bit) % (1 << 32)) for bit in range(MAP_BITS) if bitmap >> bit & 1}


def _words(kind: int, header: np.void, target: int) -> str:
    number, stream = int(header["number"]), int(header["stream"])
    if kind == CONTRIBUTION:
        return f"contribution to {IPv4Address(target)}"
    if kind == FETCHED:
        return f"contribution again, fetched by {IPv4Address(target)}"
    if kind in _ANSWERS:
        again = "again, " if kind & REPAIR else ""
        bypassed = int(header["kind"]) == CONTRIBUTION
        reason = Reason(int(header["reason"])).name.lower() if int(header["reason"]) in set(Reason) else "?"
        about = "bypassed contribution" if bypassed else f"result ({reason}) of {int(header['contributors'])}"
        return f"{about}, {again}number {number} of stream {stream:x}"
    if kind == FETCH:
        return f"fetch from chunk {int(header['chunk'])} on"
    return f"{'NACK' if kind == NACK else 'gone'} from number {number} on, stream {stream:x}"
