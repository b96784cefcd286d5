"""Deadline policies: the plan's deadline, or a shorter one that follows what arrives."""

import pytest

from aggregator.deadlines import MARGIN_NS, AdaptiveDeadline, FixedDeadline, make_deadline_policy
from aggregator.engine import Counters, EngineError

PHASE, OTHER = (0, 0), (0, 1)
PLANNED = 10**9


def test_fixed_is_the_plans() -> None:
    policy = FixedDeadline()
    policy.observe(PHASE, Counters(complete=5, longest_wait_ns=7))
    assert policy.deadline_ns(PHASE, PLANNED) == PLANNED


def test_adaptive_begins_with_the_plans_and_follows_the_spread() -> None:
    policy = AdaptiveDeadline()
    assert policy.deadline_ns(PHASE, PLANNED) == PLANNED
    policy.observe(PHASE, Counters(complete=5, longest_wait_ns=100_000_000))
    assert policy.deadline_ns(PHASE, PLANNED) == 150_000_000 + MARGIN_NS


def test_adaptive_rises_at_once_and_falls_slowly() -> None:
    policy = AdaptiveDeadline()
    policy.observe(PHASE, Counters(complete=5, longest_wait_ns=100_000_000))
    policy.observe(PHASE, Counters(complete=5, longest_wait_ns=300_000_000))
    assert policy.deadline_ns(PHASE, PLANNED) == 450_000_000 + MARGIN_NS
    policy.observe(PHASE, Counters(complete=5, longest_wait_ns=100_000_000))
    assert policy.deadline_ns(PHASE, PLANNED) == 375_000_000 + MARGIN_NS


def test_adaptive_never_exceeds_the_plan() -> None:
    policy = AdaptiveDeadline()
    policy.observe(PHASE, Counters(complete=5, longest_wait_ns=PLANNED))
    assert policy.deadline_ns(PHASE, PLANNED) == PLANNED


def test_adaptive_learns_of_late_contributions_that_it_was_too_short() -> None:
    policy = AdaptiveDeadline()
    policy.observe(PHASE, Counters(complete=5, longest_wait_ns=100_000_000))
    short = policy.deadline_ns(PHASE, PLANNED)
    policy.observe(PHASE, Counters(complete=5, late=1, timeout=1, longest_wait_ns=100_000_000))
    assert policy.deadline_ns(PHASE, PLANNED) > 2 * (short - MARGIN_NS)


def test_adaptive_is_not_moved_by_losses() -> None:
    policy = AdaptiveDeadline()
    policy.observe(PHASE, Counters(complete=5, timeout=3, longest_wait_ns=100_000_000))
    before = policy.deadline_ns(PHASE, PLANNED)
    policy.observe(PHASE, Counters(timeout=8))
    assert policy.deadline_ns(PHASE, PLANNED) == before


def test_phases_are_apart() -> None:
    policy = AdaptiveDeadline()
    policy.observe(PHASE, Counters(complete=5, longest_wait_ns=1000))
    assert policy.deadline_ns(OTHER, PLANNED) == PLANNED


def test_unknown_policy_names_the_known() -> None:
    with pytest.raises(EngineError, match=r"'soon' is unknown; there are: fixed, adaptive"):
        make_deadline_policy("soon")
