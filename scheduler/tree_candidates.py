"""Trees worth choosing from, for one island's stream: the shortest-delay tree and others that load other links."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, product

from scheduler.topology import LinkId, Topology
from scheduler.trees import Routes, Tree

_PATHS = 12
_TREES = 40
_EXPANSIONS = 20_000


class TreeCandidates:
    """Candidate trees in one topology, worked out when first asked for and always in the same order."""

    def __init__(self, topology: Topology, routes: Routes) -> None:
        self._topology = topology
        self._routes = routes
        self._delay = {link.id: link.one_way_delay_ms for link in topology.links}
        self._outgoing: dict[str, list[str]] = {node: [] for node in topology.nodes}
        for link in topology.links:
            self._outgoing[link.source].append(link.target)
        self._paths: dict[tuple[str, str], list[tuple[LinkId, ...]]] = {}
        self._trees: dict[tuple[str, tuple[str, ...]], list[Tree]] = {}

    def trees(self, source: str, receivers: tuple[str, ...]) -> list[Tree]:
        """Candidates, the shortest-delay tree first: all combinations of short paths for up to two receivers, detours
        around one or two links of the shortest-delay tree beyond.
        """
        key = (source, receivers)
        if key not in self._trees:
            self._trees[key] = self._collect(source, receivers)
        return self._trees[key]

    def _collect(self, source: str, receivers: tuple[str, ...]) -> list[Tree]:
        shortest = self._routes.tree(source, receivers)
        found = {frozenset(shortest.links): shortest}
        ways = self._joined_paths(source, receivers) if len(receivers) <= 2 else self._detours(source, receivers)
        for tree in ways:
            found.setdefault(frozenset(tree.links), tree)
        others = [tree for tree in found.values() if tree is not shortest]
        # Short before long, few links before many; the links themselves keep the order the same in every run.
        others.sort(key=lambda t: (max(t.delays_ms(self._topology).values()), len(t.links), t.links))
        return [shortest, *others[: _TREES - 1]]

    def _joined_paths(self, source: str, receivers: tuple[str, ...]) -> Iterator[Tree]:
        for paths in product(*(self._shortest_paths(source, receiver) for receiver in receivers)):
            tree = _joined(source, receivers, paths)
            if tree is not None:
                yield tree

    def _detours(self, source: str, receivers: tuple[str, ...]) -> Iterator[Tree]:
        shortest = self._routes.tree(source, receivers)
        for avoided in shortest.links:
            tree = self._avoiding(source, receivers, {avoided})
            if tree is None:
                continue
            yield tree
            for second in tree.links:
                further = self._avoiding(source, receivers, {avoided, second})
                if further is not None:
                    yield further

    def _avoiding(self, source: str, receivers: tuple[str, ...], avoided: set[LinkId]) -> Tree | None:
        parents: dict[str, str] = {}
        at = {source: 0.0}
        todo = {source}
        done: set[str] = set()
        while todo:
            node = min(todo, key=lambda n: (at[n], n))
            todo.remove(node)
            done.add(node)
            for target in self._outgoing[node]:
                reached = at[node] + self._delay[(node, target)]
                if target not in done and (node, target) not in avoided and reached < at.get(target, float("inf")):
                    at[target], parents[target] = reached, node
                    todo.add(target)
        if any(receiver not in at for receiver in receivers):
            return None
        paths = [_path(source, receiver, parents) for receiver in receivers]
        return _joined(source, receivers, paths)

    def _shortest_paths(self, source: str, target: str) -> list[tuple[LinkId, ...]]:
        key = (source, target)
        if key not in self._paths:
            self._paths[key] = list(self._simple_paths(source, target))
        return self._paths[key]

    def _simple_paths(self, source: str, target: str) -> Iterator[tuple[LinkId, ...]]:
        # Best first, guided by the exact distance that is left (links may differ by direction, so asked per node).
        left = {node: self._distance(node, target) for node in self._topology.nodes}
        frontier: list[tuple[float, int, tuple[str, ...]]] = [(left[source], 1, (source,))]
        count = 0
        for _ in range(_EXPANSIONS):
            if not frontier or count == _PATHS:
                return
            best = min(frontier)
            frontier.remove(best)
            bound, _, nodes = best
            if nodes[-1] == target:
                count += 1
                yield tuple(pairwise(nodes))
                continue
            travelled = bound - left[nodes[-1]]
            for node in self._outgoing[nodes[-1]]:
                if node not in nodes and left[node] < float("inf"):
                    bound_there = travelled + self._delay[(nodes[-1], node)] + left[node]
                    frontier.append((bound_there, len(nodes) + 1, (*nodes, node)))

    def _distance(self, node: str, target: str) -> float:
        try:
            return self._routes.delay_ms(node, target)
        except KeyError:
            return float("inf")


def _path(source: str, receiver: str, parents: dict[str, str]) -> tuple[LinkId, ...]:
    nodes = [receiver]
    while nodes[-1] != source:
        nodes.append(parents[nodes[-1]])
    nodes.reverse()
    return tuple(pairwise(nodes))


def _joined(source: str, receivers: tuple[str, ...], paths: Sequence[tuple[LinkId, ...]]) -> Tree | None:
    """The union of paths as a tree, or None if a node would be fed twice."""
    feeding: dict[str, str] = {}
    links: list[LinkId] = []
    for path in paths:
        for sender, receiver in path:
            if receiver == source or feeding.setdefault(receiver, sender) != sender:
                return None
            if (sender, receiver) not in links:
                links.append((sender, receiver))
    return Tree(source, receivers, tuple(links))
