"""One round as numbers: who sends to whom, how long it takes to get there, and what the streams share.

`build` turns (topology, cliques, trees, payload, memory) into an Exchange; the closed forms, the round LP and the
checks all read that, and nothing else. Times are in ms; σ (`sigma_ms`) is the time that the payload takes alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.errors import PlanError
from scheduler.topology import Topology
from scheduler.trees import Tree

MULTICASTS = ("direct", "unicast")
AGGREGATIONS = ("edge", "host")

# 1 GB is 8e9 bits and 1 Gbit/s is 1e6 bits per ms.
MS_PER_GB_AT_1_GBPS = 8000.0


@dataclass(frozen=True)
class Shared:
    """Something that several streams share: Σ copies·σ/D ≤ 1 over the streams that use it."""

    name: str
    sigma_ms: float
    copies: Mapping[str, int]


@dataclass(frozen=True)
class Exchange:
    """A round's data. Senders are the members of its cliques of two or more; idle islands do not appear.

    `delay_ms[j][i]` is the delay of j's stream at receiver i, `least_duration_ms[j]` what the access links allow
    (row 5), `memory_share` = M/S, and inf where nothing is summed at the edge.
    """

    cliques: tuple[tuple[str, ...], ...]
    delay_ms: Mapping[str, Mapping[str, float]]
    shared: tuple[Shared, ...]
    least_duration_ms: Mapping[str, float]
    memory_share: float
    payload_gb: float
    trees: Mapping[str, Tree]

    @property
    def senders(self) -> tuple[str, ...]:
        return tuple(self.delay_ms)

    @property
    def needs_no_alignment(self) -> bool:
        """True when rows (2) and (3) vanish."""
        return self.memory_share >= 1.0


def check_amounts(payload_gb: float, memory_gb: float) -> None:
    """Raise PlanError unless the payload is finite and above 0 and the memory is at least 0 (inf is allowed)."""
    if not (math.isfinite(payload_gb) and payload_gb > 0):
        raise PlanError(f"payload_gb must be a finite number above 0, not {payload_gb}")
    if math.isnan(memory_gb) or memory_gb < 0:
        raise PlanError(f"memory_gb must be at least 0, not {memory_gb}")


def build(
    topology: Topology,
    cliques: Sequence[Sequence[str]],
    trees: Mapping[str, Tree],
    *,
    payload_gb: float,
    memory_gb: float,
    multicast: str = "direct",
    aggregation: str = "edge",
) -> Exchange:
    """The data of one round. `trees` has a tree for every member of a clique of two or more.

    With `unicast` every receiver gets its own copy, so a link carries one per receiver behind it and the sender's
    access link carries all. With `host` aggregation the streams enter the island unsummed and share its access link,
    and no edge memory is needed. Raises PlanError for impossible amounts or unknown modes.
    """
    check_amounts(payload_gb, memory_gb)
    if multicast not in MULTICASTS:
        raise PlanError(f"multicast must be one of {', '.join(MULTICASTS)}, not {multicast!r}")
    if aggregation not in AGGREGATIONS:
        raise PlanError(f"aggregation must be one of {', '.join(AGGREGATIONS)}, not {aggregation!r}")
    work_ms = payload_gb * MS_PER_GB_AT_1_GBPS
    islands = {island.id: island for island in topology.islands}
    busy = tuple(tuple(clique) for clique in cliques if len(clique) > 1)
    delay_ms: dict[str, dict[str, float]] = {}
    least: dict[str, float] = {}
    loads: dict[tuple[str, str], dict[str, int]] = {}
    arriving: dict[str, dict[str, int]] = {}
    for clique in busy:
        for sender in clique:
            tree = trees[sender]
            delay_ms[sender] = tree.delays_ms(topology)
            copies = tree.copies()
            for link in tree.links:
                loads.setdefault(link, {})[sender] = copies[link] if multicast == "unicast" else 1
            sent = len(tree.receivers) if multicast == "unicast" else 1
            least[sender] = work_ms * sent / islands[sender].access_up_gbps
            for receiver in tree.receivers:
                least[sender] = max(least[sender], work_ms / islands[receiver].access_down_gbps)
                arriving.setdefault(receiver, {})[sender] = 1
    shared = [
        Shared(f"link {source}>{target}", work_ms / topology.link(source, target).rate_gbps, users)
        for (source, target), users in sorted(loads.items())
    ]
    if aggregation == "host":
        shared += [
            Shared(f"access down {island}", work_ms / islands[island].access_down_gbps, users)
            for island, users in sorted(arriving.items())
        ]
    share = math.inf if aggregation == "host" else memory_gb / payload_gb
    return Exchange(busy, delay_ms, tuple(shared), least, share, payload_gb, dict(trees))
