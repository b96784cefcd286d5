"""A plan in the terms of run control: what each process has to do in each phase of an epoch."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scheduler.plan import Plan, RoundPlan
from scheduler.topology import Topology
from testbed.multicast.groups import Tree, TreeKey, allocate_trees
from testbed.network import naming
from testbed.run.arrivals import planned_arrivals
from testbed.run.frames import Framing, packetisation_ms, shard_values
from testbed.scale import Scale

# A slot is given up this long after the whole round could have passed since its first contribution.
DEADLINE_SLACK_MS = 200.0
# Hosts give a round up when every slot of every edge has certainly been evicted and sent on.
GIVE_UP_SLACK_MS = 500.0
# With repair from the sources: when sums that were given up have reached the hosts, and how long fetching may take.
FETCH_SLACK_MS = 50.0
FETCH_TIME_MS = 5000.0


@dataclass(frozen=True)
class Phase:
    """One place in the schedule, in emulated time.

    `deadlines_ns`: by island, of a slot from its first contribution on. `fetch_ns` and `give_up_ns` count from the
    start of the round: when hosts fetch what they have not got, if they do, and when they give it up.
    """

    cliques: tuple[tuple[str, ...], ...]
    planned_ns: int
    packetisation_ns: int
    deadlines_ns: Mapping[str, int]
    fetch_ns: int
    give_up_ns: int


@dataclass(frozen=True)
class Epoch:
    """A schedule in force: its phases, the period between the starts of two rounds, and its trees."""

    number: int
    plan: Plan
    period_ns: int
    phases: tuple[Phase, ...]
    trees: Mapping[TreeKey, Tree]
    island_ids: Mapping[str, int]
    scale: Scale
    shard_values: tuple[int, ...]
    copies: bool = False
    """Whether each receiver gets a copy of its own, instead of one multicast for all."""

    def phase_of(self, round_number: int) -> int:
        return round_number % len(self.phases)

    def clique_of(self, phase: int, island: str) -> tuple[str, ...]:
        """The clique of an island in a phase; an idle island is alone."""
        return next((clique for clique in self.phases[phase].cliques if island in clique), (island,))

    def members(self, phase: int, island: str) -> int:
        """The clique of an island as a bitmap."""
        return sum(1 << self.island_ids[member] for member in self.clique_of(phase, island))

    def expected(self, phase: int, island: str) -> int:
        """The contributors whose streams come to an island, as a bitmap."""
        return self.members(phase, island) & ~(1 << self.island_ids[island])

    def distinct_trees(self) -> list[Tree]:
        """Each tree once, in the order of their first rounds."""
        return list(dict.fromkeys(self.trees.values()))

    def destinations(self, tree: Tree) -> list[str]:
        """Where a host sends what goes over `tree`: its group, or each receiver's edge."""
        if not self.copies:
            return [tree.group]
        return [naming.edge_address(self.island_ids[receiver]) for receiver in tree.receivers]

    def edge_message(self, island: str) -> dict[str, Any]:
        """The `epoch` message of an island's edge."""
        flows = {
            (naming.edge_address(self.island_ids[island]) if self.copies else tree.group, tree.address)
            for tree in self.distinct_trees()
            if island in tree.receivers
        }
        return {
            "epoch": self.number,
            "groups": [{"group": group, "source": source} for group, source in sorted(flows)],
            "phases": [
                {"expected": self.expected(number, island), "deadline_ns": phase.deadlines_ns[island]}
                for number, phase in enumerate(self.phases)
            ],
        }

    def data_plane_message(self, island: str, shard: int) -> dict[str, Any]:
        """The `epoch` message of the data plane of an island's host."""
        phases = []
        for number, planned in enumerate(self.plan.rounds):
            flow = next((flow for flow in planned.flows if flow.source == island), None)
            tree = self.trees[number, island, shard] if flow else None
            phases.append(
                {
                    "group": tree.group if tree else None,
                    "source": tree.address if tree else None,
                    "destinations": self.destinations(tree) if tree else [],
                    "offset_ns": self.scale.emulated_ns(flow.offset_ms) if flow else 0,
                    "duration_ns": self.scale.emulated_ns(flow.duration_ms) if flow else 0,
                    "expected": self.expected(number, island),
                }
            )
        return {"epoch": self.number, "phases": phases}

    def trainer_message(self, island: str, scale_exponents: list[int]) -> dict[str, Any]:
        """The `epoch` message of an island's trainer."""
        return {
            "epoch": self.number,
            "scale_exponents": scale_exponents,
            "phases": [{"members": self.members(number, island)} for number in range(len(self.phases))],
        }


def make_epoch(
    number: int,
    plan: Plan,
    topology: Topology,
    framing: Framing,
    scale: Scale,
    hosts: int = 1,
    copies: bool = False,
    live: Collection[Tree] = (),
    used_groups: Collection[str] = (),
    fetch: bool = False,
) -> Epoch:
    """The epoch that runs `plan`, beside the `live` trees of epochs before, and on groups not used if there are any.

    With `fetch` hosts fetch what they have not got. With `copies` all of a host's packets come from the address that it
    is known by: there are no trees to tell apart.
    Raises TestbedError if its trees cannot have groups.
    """
    island_ids = {island.id: island_id for island_id, island in enumerate(topology.islands)}
    phases = tuple(_phase(planned, topology, framing, scale, fetch) for planned in plan.rounds)
    trees = allocate_trees(plan, island_ids, hosts, live, used_groups)
    if copies:
        trees = {
            (phase, name, shard): replace(tree, address=naming.host_address(island_ids[name], shard + 1))
            for (phase, name, shard), tree in trees.items()
        }
    period_ns = scale.emulated_ns(plan.round_time_ms)
    return Epoch(number, plan, period_ns, phases, trees, island_ids, scale, tuple(shard_values(framing, hosts)), copies)


def _phase(planned: RoundPlan, topology: Topology, framing: Framing, scale: Scale, fetch: bool) -> Phase:
    packetisation = packetisation_ms(planned, topology, scale, framing.full_frame_bytes)
    longest_ms = planned.round_time_ms + packetisation + DEADLINE_SLACK_MS
    deadlines_ms = {island.id: longest_ms for island in topology.islands}
    last_eviction_ms = planned.round_time_ms + longest_ms
    if fetch:
        # The sooner a sum is given up the sooner what it lacks is fetched; what is merely late bypasses and is merged.
        arrivals = planned_arrivals(planned, topology)
        deadlines_ms |= {
            island: arrival.spread_ms + packetisation + DEADLINE_SLACK_MS for island, arrival in arrivals.items()
        }
        evictions_ms = [arrival.first_end_ms + deadlines_ms[island] for island, arrival in arrivals.items()]
        last_eviction_ms = max(evictions_ms, default=0.0) + packetisation
    fetch_ms = last_eviction_ms + packetisation + FETCH_SLACK_MS
    give_up_ms = fetch_ms + FETCH_TIME_MS if fetch else last_eviction_ms + GIVE_UP_SLACK_MS
    return Phase(
        cliques=planned.cliques,
        planned_ns=scale.emulated_ns(planned.round_time_ms),
        packetisation_ns=scale.emulated_ns(packetisation),
        deadlines_ns={island: scale.emulated_ns(deadline_ms) for island, deadline_ms in deadlines_ms.items()},
        fetch_ns=scale.emulated_ns(fetch_ms),
        give_up_ns=scale.emulated_ns(give_up_ms),
    )
