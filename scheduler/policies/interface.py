"""What a policy is. Read this first; each policy has a module of its own beside this one.

A policy turns a problem into a schedule: a repeating sequence of rounds, each a set of disjoint cliques of islands.
Islands in no clique are idle in that round. The planner then works out trees, offsets, durations and memory; a policy
that needs such numbers to choose asks the problem for them: `problem.islands`, `problem.regions()`,
`problem.delay_ms(a, b)`, `problem.round_time_ms(cliques)` (see `scheduler/problem.py`).

Users add their own with an entry point in the group `testbed.policies` that names a class like the ones here.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from scheduler.problem import Problem

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


class Policy(Protocol):
    """A rule that turns a problem into a schedule. Constructed without arguments."""

    name: str

    def schedule(self, problem: "Problem") -> Schedule:
        """The rounds. Raises PolicyError, in one line, where the policy does not apply."""
        ...
