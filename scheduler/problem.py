"""A planning problem, as policies see it: a topology with payload and memory, and round times on request."""

import math
from collections.abc import Mapping, Sequence

from scheduler import closed_form, exchange, round_lp
from scheduler.errors import PlanError
from scheduler.exchange import MS_PER_GB_AT_1_GBPS, Exchange
from scheduler.policies.interface import Clique, Round
from scheduler.regions import regions_of
from scheduler.solution import Infeasible, RoundSolution
from scheduler.topology import Topology
from scheduler.tree_candidates import TreeCandidates
from scheduler.tree_packing import TreePacking
from scheduler.trees import Routes, Tree

TREES = ("shortest", "optimised")


class Problem:
    """What policies may ask; solves each round once.

    `topology`, `payload_gb`, `memory_gb` (of each aggregator), `measure` (of divergence) and `seed` (for any choice at
    random) are plain attributes.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        memory_gb: float,
        payload_gb: float,
        multicast: str = "direct",
        aggregation: str = "edge",
        trees: str = "shortest",
        equal_rates: bool = False,
        measure: str = "total-variation",
        seed: int = 0,
    ) -> None:
        exchange.check_amounts(payload_gb, memory_gb)
        if trees not in TREES:
            raise PlanError(f"trees must be one of {', '.join(TREES)}, not {trees!r}")
        self.topology = topology
        self.memory_gb = memory_gb
        self.payload_gb = payload_gb
        self.multicast = multicast
        self.aggregation = aggregation
        self.trees = trees
        self.equal_rates = equal_rates
        self.measure = measure
        self.seed = seed
        self._routes = Routes(topology)
        sigma_ms = {link.id: payload_gb * MS_PER_GB_AT_1_GBPS / link.rate_gbps for link in topology.links}
        self._packing = TreePacking(
            topology, TreeCandidates(topology, self._routes), sigma_ms, unicast=multicast == "unicast"
        )
        self._times: dict[tuple[float, Round], float] = {}

    @property
    def islands(self) -> tuple[str, ...]:
        """Ids of the islands, in the order of the topology."""
        return self.topology.island_ids

    def regions(self) -> tuple[tuple[str, ...], ...]:
        """The islands by region, given or clustered. Raises PolicyError if the topology says nothing about them."""
        return regions_of(self.topology)

    def with_trees(self, trees: str) -> "Problem":
        """The same problem on other trees."""
        return Problem(
            self.topology,
            memory_gb=self.memory_gb,
            payload_gb=self.payload_gb,
            multicast=self.multicast,
            aggregation=self.aggregation,
            trees=trees,
            equal_rates=self.equal_rates,
            measure=self.measure,
            seed=self.seed,
        )

    def delay_ms(self, source: str, target: str) -> float:
        """The smallest one-way delay between two islands, edge to edge."""
        return self._routes.delay_ms(source, target)

    def round_time_ms(self, cliques: Sequence[Clique], memory_gb: float | None = None) -> float:
        """The smallest round time of these cliques, in ms; inf if there is none.

        At the problem's memory, or at another one: 0 and inf are quick, and inf gives a lower bound for every memory.
        """
        memory = self.memory_gb if memory_gb is None else memory_gb
        key = (memory, tuple(cliques))
        if key not in self._times:
            answer = self.solve(cliques, memory, quick=True)[1]
            self._times[key] = math.inf if isinstance(answer, Infeasible) else answer.time_ms
        return self._times[key]

    def solve(
        self, cliques: Sequence[Clique], memory_gb: float, *, quick: bool = False
    ) -> tuple[Exchange, RoundSolution | Infeasible]:
        """The data and the optimum of one round: in closed form where there is one, by the round LP elsewhere.

        With optimised trees it is the best of: shortest-delay trees, trees packed for enough memory, and trees packed
        for none; `quick` packs them without the integer program.
        """
        data = self.exchange(cliques, memory_gb)
        best = data, self._solve(data)
        if self.trees == "shortest":
            return best
        alignment = {False, True}
        if data.needs_no_alignment or all(len(clique) < 3 for clique in cliques):
            alignment = {False}
        elif memory_gb == 0.0:
            alignment = {True}
        for aligned in sorted(alignment):
            packed = self._packing.trees(tuple(cliques), aligned=aligned, quick=quick)
            if isinstance(packed, Infeasible):
                continue
            data = self.exchange(cliques, memory_gb, packed)
            answer = self._solve(data)
            if isinstance(best[1], Infeasible) or (
                isinstance(answer, RoundSolution) and answer.time_ms < best[1].time_ms * (1.0 - 1e-9)
            ):
                best = data, answer
        return best

    def _solve(self, data: Exchange) -> RoundSolution | Infeasible:
        if closed_form.applies(data) and not self.equal_rates:
            return closed_form.solve(data)
        return round_lp.solve(data, equal_rates=self.equal_rates)

    def exchange(
        self, cliques: Sequence[Clique], memory_gb: float, trees: Mapping[str, Tree] | None = None
    ) -> Exchange:
        """The data of one round: on these trees, or on shortest-delay trees."""
        if trees is None:
            trees = {
                sender: self._routes.tree(sender, [other for other in clique if other != sender])
                for clique in cliques
                if len(clique) > 1
                for sender in clique
            }
        return exchange.build(
            self.topology,
            cliques,
            trees,
            payload_gb=self.payload_gb,
            memory_gb=memory_gb,
            multicast=self.multicast,
            aggregation=self.aggregation,
        )
