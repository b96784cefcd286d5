"""What happens when core links go down during a run, and when they come back.

At once, the trees that use a link that is down are carried over the shortest ways that are left, so that traffic
returns within milliseconds; what was on its way is lost, and the links may carry more than they can. Then, unless the
run shall not, the policy is planned again on what is left, which is a swap like any other (testbed/run/swaps.py). When
links come back nothing is moved: the next epoch brings the better trees, and nothing is lost. Routers that find their
ways by themselves move the trees, both times; then the run takes note of when they have.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import networkx as nx

from scheduler.topology import Topology
from testbed.multicast.groups import Tree
from testbed.multicast.interface import RunningPlane
from testbed.run.epochs import Epochs

LinkPair = frozenset[str]
"""The two routers that a core link joins."""

FIND_WAYS_TIMEOUT_S = 30.0
_POLL_S = 0.005
# Ways that trees take already are preferred to others that are as long.
_KEPT = 1 - 1e-6


@dataclass(frozen=True)
class Reaction:
    """What was done about a change of the links. `reaction_ms`: until the routers had the new trees.

    `trouble`: why they have not got them, or nothing.
    """

    at_ns: int
    down: tuple[str, ...]
    moved_trees: int
    reaction_ms: float
    cut_off: tuple[str, ...]
    trouble: str = ""


class LinkFailures:
    """Keeps a run going over the core links that are up. Calls may come from any thread."""

    def __init__(
        self,
        in_force: Callable[[], Topology],
        epochs: Epochs,
        reroute: Callable[[frozenset[LinkPair]], None],
        on_reaction: Callable[[Reaction], None],
        plane: RunningPlane,
        routers_find_ways: bool,
        patience_s: float,
    ) -> None:
        """`in_force` gives the topology with the physics that its links have now, whether up or down.

        `reroute` has unicast routes avoid links; `on_reaction` is told what was done. `patience_s`: how long
        routers may take that find ways.
        """
        self._in_force = in_force
        self._epochs = epochs
        self._reroute = reroute
        self._on_reaction = on_reaction
        self._plane = plane
        self._routers_find_ways = routers_find_ways
        self._patience_s = patience_s
        self._strayed = False
        self._lock = threading.Lock()
        self._down: frozenset[LinkPair] = frozenset()
        self._changes = 0
        self.reactions: list[Reaction] = []

    @property
    def changes(self) -> int:
        """How often what is left has changed."""
        return self._changes

    def left(self) -> Topology:
        """The topology of the links that are up, with the physics that they have now. Raises TopologyError if cut."""
        topology = self._in_force()
        return topology.with_links([link for link in topology.links if frozenset(link.id) not in self._down])

    def links_are_down(self, down: Iterable[LinkPair], overtaken: Callable[[], bool] = lambda: False) -> None:
        """React to exactly these core links being down, unless that is `overtaken` by another change.

        Raises MulticastError if routers do not take the new trees.
        """
        with self._lock:
            began = time.monotonic_ns()
            before, self._down = self._down, frozenset(down)
            if self._down == before:
                return
            self._changes += 1
            topology = self._in_force()
            left = [link for link in topology.links if frozenset(link.id) not in self._down]
            live = self._epochs.live_and_planned()
            moves = moved_trees(live, [link.id for link in left], topology, self._routers_find_ways)
            if moves:
                self._epochs.move(moves)
            trouble = self._wait_until_followed(list(moves.values()), overtaken)
            reaction_ms = (time.monotonic_ns() - began) / 1e6
            names = tuple(sorted("-".join(sorted(pair)) for pair in self._down))
            reaction = Reaction(began, names, len(moves), reaction_ms, _cut_off(topology, self._down), trouble)
            self._reroute(self._down)
            self.reactions.append(reaction)
            self._on_reaction(reaction)

    def _wait_until_followed(self, trees: Sequence[Tree], overtaken: Callable[[], bool]) -> str:
        """Wait until the routers go by `trees`; returns why they do not, or nothing."""
        deadline = time.monotonic() + self._patience_s
        while not self._plane.are_followed(trees):
            if overtaken():
                return "links changed again before the routers had found their ways"
            if time.monotonic() > deadline:
                return f"the routers did not find the shortest ways within {self._patience_s:.0f} s"
            time.sleep(_POLL_S)
        return ""

    def disturbed(self, begin_ns: int, end_ns: int) -> bool:
        """Whether links went down or came back in this time, or carried trees that were moved.

        To be called at the end of each round. Raises OSError.
        """
        current = self._epochs.current
        # Routers that find their ways may have left those of the plan without being told of any failure.
        strayed, self._strayed = self._strayed, not self._plane.are_followed(current.distinct_trees())
        if strayed or self._strayed:
            return True
        if any(begin_ns <= reaction.at_ns <= end_ns for reaction in list(self.reactions)):
            return True
        return current.trees != self._epochs.all[current.number].trees


def _cut_off(topology: Topology, down: frozenset[LinkPair]) -> tuple[str, ...]:
    """The islands outside the largest part that still hangs together; none if nothing is cut."""
    graph = nx.Graph()
    graph.add_nodes_from(topology.nodes)
    graph.add_edges_from(link.id for link in topology.links if frozenset(link.id) not in down)
    parts = [part & set(topology.island_ids) for part in nx.connected_components(graph)]
    largest = max(parts, key=len)
    return tuple(island for island in topology.island_ids if island not in largest)


def moved_trees(
    trees: Sequence[tuple[Tree, Tree]],
    left: Sequence[tuple[str, str]],
    topology: Topology,
    always_shortest: bool = False,
) -> dict[Tree, Tree]:
    """The trees that must change, and into what, when only the links `left` are there.

    `trees` has each tree as it is and as it was planned. All trees of one source address go the same ways afterwards,
    as a router has one way back to an address. Receivers that cannot be reached are left out. Trees that can stay do,
    unless they are `always_shortest`, as where routers find the ways.
    """
    delays = {link.id: link.one_way_delay_ms for link in topology.links}
    by_address: dict[str, list[tuple[Tree, Tree]]] = {}
    for live, planned in trees:
        by_address.setdefault(live.address, []).append((live, planned))
    moves = {}
    for of_address in by_address.values():
        used = {link for live, _ in of_address for link in live.links}
        whole = all(live.receivers == planned.receivers for live, planned in of_address)
        if used <= set(left) and whole and not always_shortest:
            continue
        source = of_address[0][0].source
        graph = nx.DiGraph()
        graph.add_node(source)
        graph.add_weighted_edges_from(
            (*link, delays[link] * (_KEPT if link in used and not always_shortest else 1)) for link in left
        )
        paths = nx.single_source_dijkstra_path(graph, source)
        for live, planned in of_address:
            receivers = tuple(receiver for receiver in planned.receivers if receiver in paths)
            links = dict.fromkeys(link for receiver in receivers for link in pairwise(paths[receiver]))
            moved = replace(live, receivers=receivers, links=tuple(links))
            if (set(moved.links), receivers) != (set(live.links), live.receivers):
                moves[live] = moved
    return moves
