"""Which way a flow's packets go, learned from where they were seen; and where those that did not arrive were lost."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from testbed.analyze.captures import Captures


@dataclass(frozen=True)
class Loss:
    """Where a packet was lost. `link`: on the way from one node to the next; else inside the node `place`."""

    place: str
    link: bool


class Way:
    """The way of one flow through the points where its packets were seen.

    `roots` are where packets come into sight, `leaves` where they end: at a node that does not send them on, or at an
    interface whose other end was not captured.
    """

    def __init__(self, captures: Captures, seen: Collection[int]) -> None:
        self._captures = captures
        points = captures.points
        peers = captures.peers
        came_from = {inward: out for out, inward in peers.items()}
        here = set(seen)
        # A point that a packet should have reached belongs to the way even if none has.
        here |= {peers[point] for point in seen if point in peers}
        self.hops = sorted((out, inward) for out, inward in peers.items() if out in here or inward in here)
        by_node: dict[str, list[int]] = {}
        for point in sorted(here):
            by_node.setdefault(points[point].node, []).append(point)
        self.before: dict[int, list[int]] = {}
        after: dict[int, list[int]] = {point: [] for point in here}
        for point in here:
            if points[point].outbound:
                siblings = by_node[points[point].node]
                self.before[point] = [
                    other
                    for other in siblings
                    if not points[other].outbound and points[other].interface != points[point].interface
                ]
            else:
                self.before[point] = [came_from[point]] if came_from.get(point) in here else []
            for other in self.before[point]:
                after[other].append(point)
        self.after = after
        self.roots = sorted(point for point in here if not self.before[point])
        self.leaves = sorted(point for point in here if not after[point])

    def towards(self, leaf: int) -> set[int]:
        """The points from which a packet can come to a leaf, with it."""
        found, open_ = {leaf}, [leaf]
        while open_:
            for point in self.before[open_.pop()]:
                if point not in found:
                    found.add(point)
                    open_.append(point)
        return found

    @cached_property
    def _towards(self) -> dict[int, set[int]]:
        return {leaf: self.towards(leaf) for leaf in self.leaves}

    def loss(self, seen: Mapping[int, int], leaf: int) -> Loss | None:
        """Where a packet, seen so often at each point, was lost on its way to a leaf; None: that cannot be told."""
        points = self._captures.points
        candidates = self._towards[leaf]
        for out, inward in self.hops:
            if out in candidates and inward in candidates and seen.get(out) and not seen.get(inward):
                return Loss(f"{points[out].node}>{points[inward].node}", link=True)
        for point in sorted(candidates):
            onward = [other for other in self.after[point] if other in candidates]
            if not points[point].outbound and seen.get(point) and onward and not any(seen.get(o) for o in onward):
                return Loss(points[point].node, link=False)
        return None
