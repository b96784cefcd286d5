"""What was asked for again, and when it came: NACKs and fetches, and the packets that answer them."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aggregator.wire.packet import MAP_BITS
from testbed.analyze.captures import Captures, Sightings
from testbed.analyze.flows import FETCH, FETCHED, GONE, NACK, REPAIR, RESULT

_WRAP = 1 << 32

Key = tuple[int, ...]


@dataclass
class Request:
    """Something that was asked for at `asked_ns` for the first time, and `times` times in all."""

    asked_ns: int
    times: int = 1
    repaired_ns: int | None = None
    gone: bool = False


@dataclass
class Repairs:
    """All requests of a host, by what they are for, as they are seen at the host's own interface.

    Where only the edge's end of the access link was captured, it is taken instead.
    """

    captures: Captures
    requests: dict[Key, Request] = field(default_factory=dict)
    nacks: int = 0
    fetches: int = 0
    repairs: int = 0
    """Packets that answered requests and arrived, more than one for a request included."""

    def __post_init__(self) -> None:
        points = self.captures.points
        hosts = [point.is_host for point in points]
        # Requests leave hosts, repairs come to them; at edges it is the other way round.
        self._ways = [point.outbound == point.is_host for point in points]
        self._taken = np.array([host or not any(hosts) for host in hosts], bool)

    def add(self, sightings: Sightings, kind: NDArray[np.int64]) -> None:
        """Note sightings; `kind` has their classes."""
        interesting = np.isin(kind, (NACK, GONE, FETCH, FETCHED, RESULT + REPAIR)) & self._taken[sightings.point]
        packets = sightings.packets
        for row in np.flatnonzero(interesting & ~packets.bad).tolist():
            header, asking = packets.header[row], self._ways[int(sightings.point[row])]
            time_ns = int(sightings.time_ns[row])
            source, target = int(packets.source_ip[row]), int(packets.target_ip[row])
            if kind[row] in {NACK, FETCH} and asking:
                self.nacks += int(kind[row] == NACK)
                self.fetches += int(kind[row] == FETCH)
                for key in _asked(int(kind[row]), header, source, target):
                    if key in self.requests:
                        self.requests[key].times += 1
                    else:
                        self.requests[key] = Request(time_ns)
            elif kind[row] == GONE and not asking:
                for key in _asked(NACK, header, target, source):
                    if key in self.requests:
                        self.requests[key].gone = True
            elif kind[row] in {FETCHED, RESULT + REPAIR} and not asking:
                self.repairs += 1
                request = self.requests.get(_answered(int(kind[row]), header, source, target))
                if request is not None and request.repaired_ns is None:
                    request.repaired_ns = time_ns

    def latencies_ms(self) -> list[float]:
        """From the first request to the arrival of what was asked for, for all that came; ascending."""
        repaired = [each for each in self.requests.values() if each.repaired_ns is not None]
        return sorted(((each.repaired_ns or 0) - each.asked_ns) / 1e6 for each in repaired)


def _asked(kind: int, header: np.void, asker: int, other: int) -> list[Key]:
    """What a NACK or a fetch asks for."""
    bitmap = int(header["bitmap"])
    wanted = [bit for bit in range(MAP_BITS) if bitmap >> bit & 1]
    if kind == NACK:
        return [(asker, int(header["stream"]), (int(header["number"]) + bit) % _WRAP) for bit in wanted]
    place = (asker, other, int(header["round"]), int(header["shard"]))
    return [(*place, int(header["chunk"]) + bit) for bit in wanted]


def _answered(kind: int, header: np.void, source: int, target: int) -> Key:
    """What a repair is the answer to."""
    if kind == FETCHED:
        return (target, source, int(header["round"]), int(header["shard"]), int(header["chunk"]))
    return (target, int(header["stream"]), int(header["number"]))
