"""What a policy is. Read this first; each policy has a module of its own beside this one.

A policy turns a problem into a schedule: a repeating sequence of rounds, each a set of disjoint cliques of islands.
Islands in no clique are idle in that round. The planner then works out trees, offsets, durations and memory; a policy
that needs such numbers to choose asks the problem for them.

Users add their own with an entry point in the group `testbed.policies` that names a class like the ones here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduler.topology import Topology

Clique = tuple[str, ...]
Round = tuple[Clique, ...]


@dataclass(frozen=True)
class Schedule:
    """The answer of a policy: rounds in order. A search also says what it proved.

    `lower_bound_ms` bounds the objective of every schedule that was searched for; None where nothing was bounded.
    """

    rounds: tuple[Round, ...]
    proven_optimal: bool = False
    lower_bound_ms: float | None = None


class Problem(Protocol):
    """What a policy may ask."""

    topology: Topology
    memory_gb: float
    payload_gb: float
    seed: int

    @property
    def islands(self) -> tuple[str, ...]:
        """Ids of the islands, in the order of the topology."""
        ...

    def regions(self) -> tuple[tuple[str, ...], ...]:
        """The islands by region, given or clustered. Raises PolicyError if the topology says nothing about them."""
        ...

    def delay_ms(self, source: str, target: str) -> float:
        """The smallest one-way delay between two islands, edge to edge."""
        ...

    def round_time_ms(self, cliques: Sequence[Clique], memory_gb: float | None = None) -> float:
        """The smallest round time of these cliques; inf if there is none. Remembered.

        At the problem's memory, or at another one: 0 and inf are quick, and inf gives a lower bound for every memory.
        """
        ...


class Policy(Protocol):
    """A rule that turns a problem into a schedule. Constructed without arguments."""

    name: str

    def schedule(self, problem: Problem) -> Schedule:
        """The rounds. Raises PolicyError, in one line, where the policy does not apply."""
        ...
