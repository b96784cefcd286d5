"""Ring all-reduce on the core links, for comparison: what synchronous training takes without the network's help.

Each of N islands holds a payload S in N parts. In 2(N − 1) steps it sends one part to the next island of the ring and
takes one from the island before: first the parts are summed on their way around, then the sums go around.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from scheduler.errors import PlanError
from scheduler.topology import Topology

MAX_ISLANDS = 12
"""Rings are searched exhaustively."""


@dataclass(frozen=True)
class Ring:
    """Islands in the order of the ring, and the time of one all-reduce: parts moving on by themselves (`pipelined_ms`),
    or every step waiting for the slowest link (`synchronous_ms`).
    """

    islands: tuple[str, ...]
    pipelined_ms: float
    synchronous_ms: float


def best_ring(topology: Topology, payload_gb: float) -> Ring:
    """The ring over core links whose pipelined time is shortest. Raises PlanError if there is none, or too many."""
    islands = topology.island_ids
    if len(islands) > MAX_ISLANDS:
        raise PlanError(f"{topology.name} has {len(islands)} islands: rings are searched for up to {MAX_ISLANDS}")
    rings = [_timed(topology, ring, payload_gb) for ring in _rings(topology)]
    if not rings:
        raise PlanError(f"{topology.name} has no ring of core links through all islands")
    return min(rings, key=lambda ring: (ring.pipelined_ms, ring.synchronous_ms, ring.islands))


def _rings(topology: Topology) -> Iterator[tuple[str, ...]]:
    links = {link.id for link in topology.links}
    first, *others = topology.island_ids

    def extend(path: tuple[str, ...], left: frozenset[str]) -> Iterator[tuple[str, ...]]:
        if not left and (path[-1], first) in links:
            yield path
        for island in sorted(left):
            if (path[-1], island) in links:
                yield from extend((*path, island), left - {island})

    yield from extend((first,), frozenset(others))


def _timed(topology: Topology, ring: tuple[str, ...], payload_gb: float) -> Ring:
    links = {link.id: link for link in topology.links}
    hops = [links[source, target] for source, target in zip(ring, (*ring[1:], ring[0]), strict=True)]
    count = len(ring)
    steps = 2 * (count - 1)
    part_ms = [payload_gb / count * 8e3 / hop.rate_gbps for hop in hops]
    synchronous_ms = steps * max(hop.one_way_delay_ms + part for hop, part in zip(hops, part_ms, strict=True))
    # Part k sets out at island k and passes `steps` hops. Every island sends `steps` parts, one after the other.
    delays_ms = [hop.one_way_delay_ms for hop in hops]
    longest_ms = max(sum(delays_ms[(first + hop) % count] for hop in range(steps)) for first in range(count))
    return Ring(ring, longest_ms + steps * max(part_ms), synchronous_ms)
