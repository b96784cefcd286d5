"""Replay of a planned round, byte position by byte position: an independent check of what the plan claims.

Nothing here is shared with the formulas that made the plan. Positions spread evenly over the payload are sent at each
stream's own pace, walk its tree link by link, and open and close a slot at every receiver: a slot is open from the
first stream's arrival of that position to the last one's. Reported are open slots over time, the rates on every link,
and when the last byte arrives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.plan import Flow
from scheduler.topology import LinkId, Topology

_Series = NDArray[np.float64]


@dataclass(frozen=True)
class Replay:
    """What happened. Series are pairs (times in ms, values): each value holds from its time on.

    `occupancy_gb` is the memory in use by receiving island; it counts positions, so it is exact to about one part in
    the number of positions. `link_rate_gbps` is the sum of the rates on each used link.
    """

    last_byte_ms: float
    last_byte_by_island_ms: Mapping[str, float]
    occupancy_gb: Mapping[str, tuple[_Series, _Series]]
    link_rate_gbps: Mapping[LinkId, tuple[_Series, _Series]]

    def peak_memory_gb(self, island: str) -> float:
        return float(self.occupancy_gb[island][1].max())

    def peak_rate_gbps(self, link: LinkId) -> float:
        return float(self.link_rate_gbps[link][1].max())


def replay(
    topology: Topology, flows: Sequence[Flow], *, payload_gb: float, unicast: bool = False, positions: int = 4096
) -> Replay:
    """Replay the flows of one round. With `unicast` every receiver has a copy of its own on every link of its path."""
    # Both ends are there: position 0 is the first byte, 1 the last.
    sent = np.linspace(0.0, 1.0, positions)
    arrivals: dict[str, list[_Series]] = {}
    runs: dict[LinkId, list[tuple[float, float, float]]] = {}
    for flow in flows:
        at = {flow.source: flow.offset_ms + sent * flow.duration_ms}
        feeding: dict[str, str] = {}
        for source, target in flow.links:
            at[target] = at[source] + topology.link(source, target).one_way_delay_ms
            feeding[target] = source
        rate = payload_gb * 8000.0 / flow.duration_ms
        carried = dict.fromkeys(flow.links, 0)
        for receiver in flow.receivers:
            arrivals.setdefault(receiver, []).append(at[receiver])
            node = receiver
            while node != flow.source:
                carried[(feeding[node], node)] += 1
                node = feeding[node]
        for link, receivers in carried.items():
            begins, ends = at[link[0]][0], at[link[0]][-1]
            runs.setdefault(link, []).append((begins, ends, rate * receivers if unicast else rate))
    ends_ms = {island: float(max(stream[-1] for stream in streams)) for island, streams in arrivals.items()}
    return Replay(
        max(ends_ms.values(), default=0.0),
        ends_ms,
        {island: _open_slots(streams, payload_gb) for island, streams in arrivals.items()},
        {link: _added_rates(parts) for link, parts in runs.items()},
    )


def _open_slots(streams: list[_Series], payload_gb: float) -> tuple[_Series, _Series]:
    stack = np.stack(streams)
    opens, closes = stack.min(axis=0), stack.max(axis=0)
    # Arrivals that differ by rounding only are the same instant; a slot that closes makes room before one opens.
    times = np.round(np.concatenate([closes, opens]), 6)
    changes = np.concatenate([np.full(len(closes), -1.0), np.full(len(opens), 1.0)])
    # A slot that opens and closes at once was never held.
    held = np.tile(np.round(closes, 6) > np.round(opens, 6), 2)
    times, changes = times[held], changes[held]
    order = np.lexsort((changes, times))
    start = float(opens.min())
    instants = np.concatenate([[start], times[order]])
    return instants, np.concatenate([[0.0], np.cumsum(changes[order]) * payload_gb / len(opens)])


def _added_rates(parts: list[tuple[float, float, float]]) -> tuple[_Series, _Series]:
    events = sorted(event for begins, ends, rate in parts for event in ((ends, -rate), (begins, rate)))
    times = np.array([time for time, _ in events])
    return times, np.cumsum([change for _, change in events])
