"""Deadline policies: how long a partial sum waits for the rest of its key, counted from its first contribution.

The plan gives a deadline that is safe; a policy may shorten it. A policy is told after each round how it went, and
keeps rounds of one phase (epoch, place in the schedule) apart from others, whose cliques and offsets differ.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from aggregator.engine import Counters, EngineError

Phase = tuple[int, int]

MARGIN_NS = 50_000_000
_FACTOR = 1.5
_FORGET = 0.25


class DeadlinePolicy(Protocol):
    """Decides the deadline of each round before its keys are admitted."""

    def deadline_ns(self, phase: Phase, planned_ns: int) -> int:
        """The deadline of the next round of `phase`; `planned_ns` is the plan's."""
        ...

    def observe(self, phase: Phase, counts: Counters) -> None:
        """Learn from a round of `phase` that is over."""
        ...


class FixedDeadline:
    """The plan's deadline."""

    def deadline_ns(self, phase: Phase, planned_ns: int) -> int:
        return planned_ns

    def observe(self, phase: Phase, counts: Counters) -> None:
        pass


class AdaptiveDeadline:
    """1.5 × the arrival spread seen so far + 50 ms, never more than the plan's.

    The spread is the longest that a complete key had to wait for its last contribution. It rises at once and falls by a
    quarter of the difference. Contributions that come late say that the deadline was too short: it is doubled. Without
    a complete key nothing is learnt. So a loss is found out soon, and its slot is free for others.
    """

    def __init__(self) -> None:
        self._spread_ns: dict[Phase, float] = {}

    def deadline_ns(self, phase: Phase, planned_ns: int) -> int:
        spread_ns = self._spread_ns.get(phase)
        return planned_ns if spread_ns is None else min(planned_ns, round(_FACTOR * spread_ns + MARGIN_NS))

    def observe(self, phase: Phase, counts: Counters) -> None:
        known_ns = self._spread_ns.get(phase)
        if counts.late and known_ns is not None:
            self._spread_ns[phase] = 2 * max(known_ns, counts.longest_wait_ns) + MARGIN_NS
        elif counts.complete:
            lower_ns = 0.0 if known_ns is None else known_ns - _FORGET * (known_ns - counts.longest_wait_ns)
            self._spread_ns[phase] = max(counts.longest_wait_ns, lower_ns)


DEADLINE_POLICIES: Mapping[str, Callable[[], DeadlinePolicy]] = {"fixed": FixedDeadline, "adaptive": AdaptiveDeadline}


def make_deadline_policy(name: str) -> DeadlinePolicy:
    """A policy by name. Raises EngineError for an unknown one, naming the known."""
    if name not in DEADLINE_POLICIES:
        raise EngineError(f"deadline policy {name!r} is unknown; there are: {', '.join(DEADLINE_POLICIES)}")
    return DEADLINE_POLICIES[name]()
