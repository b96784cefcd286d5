"""When, by plan, the contributions for one chunk arrive at an island: how far apart, and how late."""

from dataclasses import dataclass

from scheduler.plan import Flow, RoundPlan
from scheduler.topology import Topology


@dataclass(frozen=True)
class Arrivals:
    """`spread_ms`: the longest time from a chunk's first to its last contribution.

    `first_end_ms`: when, from the round's start, the first contribution of the last chunk is there.
    """

    spread_ms: float
    first_end_ms: float


def planned_arrivals(planned: RoundPlan, topology: Topology) -> dict[str, Arrivals]:
    """By island that receives something; undilated, of a continuous stream from edge to edge."""
    begins: dict[str, list[float]] = {}
    ends: dict[str, list[float]] = {}
    for flow in planned.flows:
        delays_ms = path_delays_ms(flow, topology)
        for island in flow.receivers:
            begin_ms = flow.offset_ms + delays_ms[island]
            begins.setdefault(island, []).append(begin_ms)
            ends.setdefault(island, []).append(begin_ms + flow.duration_ms)
    # Streams have constant rates, so their distance is the largest at one of the ends.
    return {
        island: Arrivals(
            spread_ms=max(max(times) - min(times) for times in (begins[island], ends[island])),
            first_end_ms=min(ends[island]),
        )
        for island in begins
    }


def path_delays_ms(flow: Flow, topology: Topology) -> dict[str, float]:
    """One-way delay from the flow's source to every router on its tree."""
    delay_of = {(link.source, link.target): link.one_way_delay_ms for link in topology.links}
    delays_ms = {flow.source: 0.0}
    for parent, child in flow.links:
        delays_ms[child] = delays_ms[parent] + delay_of[parent, child]
    return delays_ms
