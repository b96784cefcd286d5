"""Small topologies, and a round solved on them, for the scheduler's tests."""

from collections.abc import Sequence

from scheduler.exchange import Exchange, build
from scheduler.topology import Island, Topology, both_ways
from scheduler.trees import Routes

# At 100 Gbit/s this payload takes exactly 100 ms.
PAYLOAD_GB = 1.25


def topology(*edges: tuple[str, str, float] | tuple[str, str, float, float], transits: str = "") -> Topology:
    """A topology of two-way links (a, b, delay ms[, Gbit/s]); one-letter nodes; those in `transits` are no islands."""
    nodes = sorted({node for edge in edges for node in edge[:2]})
    links = tuple(
        link for a, b, delay, *rate in edges for link in both_ways(a, b, delay, float(rate[0]) if rate else 100.0)
    )
    islands = tuple(Island(node) for node in nodes if node not in transits)
    return Topology("test", islands, tuple(transits), links)


def exchange(
    where: Topology,
    cliques: Sequence[Sequence[str]],
    memory_gb: float,
    *,
    payload_gb: float = PAYLOAD_GB,
    multicast: str = "direct",
    aggregation: str = "edge",
) -> Exchange:
    """The round's data on shortest-delay trees."""
    routes = Routes(where)
    trees = {j: routes.tree(j, [i for i in clique if i != j]) for clique in cliques for j in clique}
    return build(
        where,
        cliques,
        trees,
        payload_gb=payload_gb,
        memory_gb=memory_gb,
        multicast=multicast,
        aggregation=aggregation,
    )


PAIR = topology(("a", "b", 50))
TRIANGLE = topology(("a", "b", 10), ("a", "c", 40), ("b", "c", 45))
CHAIN = topology(("a", "b", 10), ("b", "c", 20))


def two_pairs(second_delay_ms: float) -> Topology:
    """a-c (30 ms) and b-d (this long) through the one link x-y."""
    return topology(
        ("a", "x", 5), ("b", "x", 5), ("x", "y", 20), ("y", "c", 5), ("y", "d", second_delay_ms - 25), transits="xy"
    )
