"""Multicast trees: the directed links that carry one island's stream to its receivers, once per link.

The default is the shortest-delay tree. Ties are broken by fewer hops, then by the order of the nodes in the
topology, so the same topology always gives the same trees; a plan records them.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.errors import TopologyError
from scheduler.topology import LinkId, Topology

# Delays that differ by less than this are a tie: sums of the same delays in another order must not decide a route.
_TIE_MS = 1e-9


@dataclass(frozen=True)
class Tree:
    """A tree from `source` to `receivers`; links run outwards, each after the link that feeds it."""

    source: str
    receivers: tuple[str, ...]
    links: tuple[LinkId, ...]

    def path(self, receiver: str) -> tuple[LinkId, ...]:
        """The links from the source to this receiver, in order."""
        feeding = {target: (source, target) for source, target in self.links}
        path: list[LinkId] = []
        node = receiver
        while node != self.source:
            path.append(feeding[node])
            node = feeding[node][0]
        return tuple(reversed(path))

    def copies(self) -> dict[LinkId, int]:
        """Receivers behind each link: the copies that it carries when nothing is multicast."""
        counts = dict.fromkeys(self.links, 0)
        for receiver in self.receivers:
            for link in self.path(receiver):
                counts[link] += 1
        return counts

    def delays_ms(self, topology: Topology) -> dict[str, float]:
        """One-way delay along the tree to each receiver, edge to edge: core links only."""
        at = {self.source: 0.0}
        for source, target in self.links:
            at[target] = at[source] + topology.link(source, target).one_way_delay_ms
        return {receiver: at[receiver] for receiver in self.receivers}


class Routes:
    """Shortest-delay routes from every island of one topology, worked out when first asked for."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._outgoing: dict[str, list[tuple[str, float]]] = {node: [] for node in topology.nodes}
        for link in topology.links:
            self._outgoing[link.source].append((link.target, link.one_way_delay_ms))
        self._order = {node: index for index, node in enumerate(topology.nodes)}
        self._parents: dict[str, dict[str, str]] = {}
        self._delays: dict[str, dict[str, float]] = {}

    def delay_ms(self, source: str, target: str) -> float:
        """The smallest one-way delay between two islands over core links."""
        self._search(source)
        return self._delays[source][target]

    def tree(self, source: str, receivers: Iterable[str]) -> Tree:
        """The shortest-delay tree from an island to others. Raises TopologyError for ids that are not islands."""
        wanted = tuple(receivers)
        for island in (source, *wanted):
            if island not in self._order:
                raise TopologyError(f"topology {self.topology.name!r} has no island {island!r}")
        self._search(source)
        parents = self._parents[source]
        links: list[LinkId] = []
        joined = {source}
        for receiver in wanted:
            branch: list[LinkId] = []
            node = receiver
            while node not in joined:
                joined.add(node)
                branch.append((parents[node], node))
                node = parents[node]
            links.extend(reversed(branch))
        return Tree(source, wanted, tuple(links))

    def _search(self, source: str) -> None:
        if source in self._parents:
            return
        # Dijkstra on (delay in ticks of the tie width, hops, route as node numbers): a total order, so that the
        # chosen route to a node extends the chosen route to its parent and the routes form one tree.
        parents: dict[str, str] = {}
        delays = {source: 0.0}
        done: set[str] = set()
        best: dict[str, tuple[int, int, tuple[int, ...]]] = {source: (0, 0, (self._order[source],))}
        queue = [(best[source], source)]
        while queue:
            key, node = heapq.heappop(queue)
            if node in done:
                continue
            done.add(node)
            for target, delay_ms in self._outgoing[node]:
                if target in done:
                    continue
                new = (key[0] + round(delay_ms / _TIE_MS), key[1] + 1, (*key[2], self._order[target]))
                if target not in best or new < best[target]:
                    best[target] = new
                    parents[target] = node
                    delays[target] = delays[node] + delay_ms
                    heapq.heappush(queue, (new, target))
        self._parents[source] = parents
        self._delays[source] = delays
