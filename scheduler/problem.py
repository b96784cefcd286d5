"""A planning problem, as policies see it: a topology with payload and memory, and round times on request."""

import math
from collections.abc import Sequence

from scheduler import closed_form, exchange, round_lp
from scheduler.errors import PolicyError
from scheduler.exchange import Exchange
from scheduler.policies.interface import Clique, Round
from scheduler.solution import Infeasible, RoundSolution
from scheduler.topology import Topology
from scheduler.trees import Routes


class PlanningProblem:
    """Implements the Problem of policies; solves each round once."""

    def __init__(
        self,
        topology: Topology,
        *,
        memory_gb: float,
        payload_gb: float,
        multicast: str = "direct",
        aggregation: str = "edge",
        seed: int = 0,
    ) -> None:
        exchange.check_amounts(payload_gb, memory_gb)
        self.topology = topology
        self.memory_gb = memory_gb
        self.payload_gb = payload_gb
        self.multicast = multicast
        self.aggregation = aggregation
        self.seed = seed
        self._routes = Routes(topology)
        self._times: dict[tuple[float, Round], float] = {}

    @property
    def islands(self) -> tuple[str, ...]:
        return self.topology.island_ids

    def regions(self) -> tuple[tuple[str, ...], ...]:
        members: dict[str, list[str]] = {}
        for island in self.topology.islands:
            if island.region is None:
                raise PolicyError(
                    f"island {island.id!r} has no region: give every node a region, or use another policy"
                )
            members.setdefault(island.region, []).append(island.id)
        return tuple(tuple(region) for region in members.values())

    def round_time_ms(self, cliques: Sequence[Clique], memory_gb: float | None = None) -> float:
        memory = self.memory_gb if memory_gb is None else memory_gb
        key = (memory, tuple(cliques))
        if key not in self._times:
            answer = solve(self.exchange(cliques, memory))
            self._times[key] = math.inf if isinstance(answer, Infeasible) else answer.time_ms
        return self._times[key]

    def exchange(self, cliques: Sequence[Clique], memory_gb: float) -> Exchange:
        """The data of one round on shortest-delay trees."""
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


def solve(data: Exchange) -> RoundSolution | Infeasible:
    """The optimum of one round: in closed form where there is one, by the round LP elsewhere."""
    return closed_form.solve(data) if closed_form.applies(data) else round_lp.solve(data)
