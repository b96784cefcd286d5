"""Flows: packets that go the same way, from one sender to one address."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggregator.wire.packet import FLAG_BYPASSED, FLAG_RETRANSMITTED, Kind
from testbed.analyze.captures import Sightings

OTHER, CONTRIBUTION, RESULT, PROBE, NACK, HEARTBEAT, GONE, FETCH, FETCHED = range(9)
"""Classes of packets: their kinds, but that a bypassed contribution is what an edge sends to a host, as a result is,
and that a contribution which was fetched is on its own. Frames of other protocols are OTHER."""
REPAIR = 16
"""Added to the class of what an edge sends again."""
_FROM_HOSTS = (CONTRIBUTION, NACK, FETCH, FETCHED)
_NUMBERED = (RESULT, RESULT + REPAIR)


@dataclass(frozen=True)
class Flow:
    """`sequence` is what tells numberings apart: the epoch of contributions, the stream of what an edge sends.

    `source` is the contributor id of what hosts send.
    """

    kind: int
    source: int
    source_ip: int
    target_ip: int
    sequence: int


def classes(header: NDArray[np.void]) -> NDArray[np.int64]:
    """Each packet's class."""
    kind, flags = header["kind"].astype(np.int64), header["flags"]
    bypassed, again = (flags & FLAG_BYPASSED) != 0, (flags & FLAG_RETRANSMITTED) != 0
    contribution = kind == Kind.CONTRIBUTION
    found: NDArray[np.int64] = np.where(contribution & bypassed, RESULT, kind)
    found = np.where(contribution & again & ~bypassed, FETCHED, found)
    found = np.where(again & (found == RESULT), RESULT + REPAIR, found)
    return found


class Flows:
    """Numbers flows as they are met."""

    def __init__(self) -> None:
        self.all: list[Flow] = []
        self._numbers: dict[Flow, int] = {}

    def of(self, sightings: Sightings, kind: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of each packet's flow; `kind` has their classes."""
        packets, header = sightings.packets, sightings.packets.header
        sequence = np.where(kind == CONTRIBUTION, header["epoch"], 0)
        sequence = np.where(np.isin(kind, _NUMBERED), header["stream"], sequence)
        table = np.empty((len(kind), 2), np.uint64)
        table[:, 0] = packets.source_ip.astype(np.uint64) << np.uint64(32) | packets.target_ip
        source = np.where(np.isin(kind, _FROM_HOSTS), header["source"], 0)
        table[:, 1] = kind << 40 | source.astype(np.int64) << 32 | sequence.astype(np.int64)
        _, first, inverse = np.unique(
            table[:, 0] * np.uint64(0x9E3779B97F4A7C15) + table[:, 1], return_index=True, return_inverse=True
        )
        numbers = [
            self._number(
                Flow(
                    int(kind[row]),
                    int(source[row]),
                    int(packets.source_ip[row]),
                    int(packets.target_ip[row]),
                    int(sequence[row]),
                )
            )
            for row in first.tolist()
        ]
        return np.array(numbers, np.int64)[inverse]

    def sources(self) -> dict[int, int]:
        """The contributor ids of hosts, by their addresses, of which a host may have several."""
        return {flow.source_ip: flow.source for flow in self.all if flow.kind in _FROM_HOSTS}

    def _number(self, flow: Flow) -> int:
        if flow not in self._numbers:
            self._numbers[flow] = len(self.all)
            self.all.append(flow)
        return self._numbers[flow]
