"""From plans and runs to the rows of the comparison."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scheduler.plan import Plan
from scheduler.planner import plan
from scheduler.ring import Ring, best_ring
from scheduler.topology import Topology
from testbed.paper.experiments import (
    ABLATION,
    GLOO_RING,
    MEMORIES_GB,
    MOST_DEVIATION,
    OVERLAPPED,
    RING,
    SEARCH,
    STEP_MS,
    schedule_key,
)
from testbed.paper.outcome import Outcome
from testbed.paper.row import Row, Value
from testbed.policies import COMPARED
from testbed.run.settings import REFERENCE_PAYLOAD_GB

# What was published of a simulation of nine cities. Nothing else is known here: every other row has no such figure.
PUBLISHED_ROUND_TIME_MS = {("triangles", 0.0): 565.0, ("all-to-all", 32.0): 676.0}
PUBLISHED_RING_IDLE_FRACTION = 0.8
PUBLISHED_THROUGHPUT_RATIO = 5.0
PUBLISHED_STALENESS_S = 1.0

MOST_LIFETIME_DEVIATION = 0.01

_ABOUT = "published as about"
_MEMORY_PRECISION_GB = 1e-4
_SHORTEST = 1.0 + 1e-6

_NOT_YET = Outcome(None, "has not been run", failed=True)

Outcomes = Mapping[str, Outcome]


@dataclass(frozen=True)
class Planned:
    """All that is planned, whatever is measured: schedules by policy and memory, synchronous exchanges by their key.

    `shortest_from_gb`, `fresher_from_gb`: least memories of all-to-all, as their rows say; None if 32 GB will not do.
    """

    schedules: Mapping[tuple[str, float], Plan]
    exchanges: Mapping[str, Plan]
    ring: Ring
    shortest_from_gb: float | None
    fresher_from_gb: float | None


def plan_all(topology: Topology) -> Planned:
    """Plan what the comparison shows, but for what the search finds; takes seconds."""
    schedules = {
        (policy, memory_gb): plan(topology, policy, memory_gb=memory_gb, payload_gb=REFERENCE_PAYLOAD_GB)
        for policy in COMPARED
        for memory_gb in MEMORIES_GB
    }
    exchanges = {
        schedule_key("all-to-all", 32.0, multicast, aggregation): plan(
            topology,
            "all-to-all",
            memory_gb=32.0,
            payload_gb=REFERENCE_PAYLOAD_GB,
            multicast="unicast" if multicast == "unicast" else "direct",
            aggregation=aggregation,
        )
        for multicast, aggregation in ABLATION
    }
    shortest_ms = schedules["all-to-all", 32.0].round_time_ms
    triangles_ms = schedules["triangles", 0.0].objective_ms
    return Planned(
        schedules,
        exchanges,
        best_ring(topology, REFERENCE_PAYLOAD_GB),
        _least_memory_gb(topology, lambda planned: planned.round_time_ms <= shortest_ms * _SHORTEST),
        _least_memory_gb(topology, lambda planned: planned.objective_ms < triangles_ms),
    )


def rows(planned: Planned, outcomes: Outcomes) -> list[Row]:
    """All rows, in the order in which they are shown; what `outcomes` lacks has failed so far."""
    found: list[Row] = []
    for (policy, memory_gb), schedule in planned.schedules.items():
        found += _schedule_rows(policy, memory_gb, schedule, _outcome(outcomes, schedule_key(policy, memory_gb)))
    for memory_gb in MEMORIES_GB:
        found += _found_rows(memory_gb, _outcome(outcomes, schedule_key(SEARCH, memory_gb)))
    found += _memory_rows(planned, outcomes)
    found += _ablation_rows(planned, outcomes)
    found += _throughput_rows(planned, outcomes)
    return found


def _outcome(outcomes: Outcomes, key: str) -> Outcome:
    return outcomes.get(key, _NOT_YET)


def _schedule_rows(policy: str, memory_gb: float, planned: Plan, outcome: Outcome) -> list[Row]:
    what = f"{policy} at {memory_gb:g} GB"
    published = PUBLISHED_ROUND_TIME_MS.get((policy, memory_gb))
    feasible = Row(
        f"{what}: feasible",
        True if published is not None else None,
        planned.feasible,
        None if outcome.failed else outcome.summary is not None,
        note=planned.reason or "",
        failure=outcome.failure,
    )
    if not planned.feasible:
        return [feasible]
    note = "" if math.isfinite(planned.mean_divergence_lifetime_rounds) else "never mixes all islands"
    return [
        feasible,
        _time_row(what, published, planned.round_time_ms, outcome),
        _lifetime_row(what, _finite(planned.mean_divergence_lifetime_rounds), outcome, note),
        Row(
            f"{what}: staleness T·(A + 1/2), ms",
            None,
            _finite(planned.objective_ms),
            _staleness_ms(outcome),
            published is not None,
            note,
            failure=outcome.failure,
        ),
    ]


def _time_row(what: str, published: float | None, planned_ms: float | None, outcome: Outcome) -> Row:
    return Row(
        f"{what}: round time T, ms",
        published,
        planned_ms,
        _time_ms(outcome),
        published is not None,
        outcome.note,
        within=MOST_DEVIATION,
        failure=outcome.failure,
    )


def _lifetime_row(what: str, planned: float | None, outcome: Outcome, note: str = "") -> Row:
    return Row(
        f"{what}: divergence lifetime A, rounds",
        None,
        planned,
        outcome.measured("mean_divergence_lifetime_rounds"),
        note=note,
        within=MOST_LIFETIME_DEVIATION,
        failure=outcome.failure,
    )


def _found_rows(memory_gb: float, outcome: Outcome) -> list[Row]:
    """What the search found, which is no published schedule; how it is planned is known from its run."""
    what = f"best schedule found at {memory_gb:g} GB"
    return [
        _time_row(what, None, outcome.predicted("round_time_ms"), outcome),
        _lifetime_row(what, outcome.predicted("mean_divergence_lifetime_rounds"), outcome),
        Row(
            f"{what}: staleness T·(A + 1/2), ms",
            None,
            outcome.predicted("objective_ms"),
            _staleness_ms(outcome),
            note="not among the published schedules",
            failure=outcome.failure,
        ),
    ]


def _memory_rows(planned: Planned, outcomes: Outcomes) -> list[Row]:
    outcome = _outcome(outcomes, schedule_key("all-to-all", 32.0))
    return [
        Row(
            "all-to-all: memory from which its round takes no longer than with 32 GB, GB",
            None,
            planned.shortest_from_gb,
            None if outcome.summary is None else outcome.summary["memory"]["measured_peak_gb"],
            note="measured: the fullest aggregator; packets and jitter come on top of the plan",
            failure=outcome.failure,
        ),
        Row(
            "all-to-all: memory from which it is less stale than triangles without memory, GB",
            None,
            planned.fresher_from_gb,
        ),
    ]


def _ablation_rows(planned: Planned, outcomes: Outcomes) -> list[Row]:
    """All-to-all after every step, as synchronous training has it, with and without the network's help."""
    found = []
    for multicast, aggregation in ABLATION:
        key = schedule_key("all-to-all", 32.0, multicast, aggregation)
        exchange_ms, outcome = planned.exchanges[key].round_time_ms, _outcome(outcomes, key)
        what = f"synchronous SGD, {multicast}, summed at the {aggregation}"
        found += [
            Row(
                f"{what}: exchange, ms",
                None,
                exchange_ms,
                _time_ms(outcome),
                note=outcome.note,
                within=MOST_DEVIATION,
                failure=outcome.failure,
            ),
            Row(
                f"{what}: islands idle",
                None,
                _idle(exchange_ms),
                _idle(_time_ms(outcome)),
                note=f"exchange / (exchange + {STEP_MS:g} ms of computing)",
                failure=outcome.failure,
            ),
        ]
    return found


def _throughput_rows(planned: Planned, outcomes: Outcomes) -> list[Row]:
    reduced, gloo, overlapped = (_outcome(outcomes, key) for key in (RING, GLOO_RING, OVERLAPPED))
    training = None if overlapped.summary is None else overlapped.summary["training"]
    steps_per_s = None if training is None else training["steps_per_s"]
    ring_steps_per_s = reduced.measured("steps_per_s")
    ratio = None if steps_per_s is None or ring_steps_per_s is None else steps_per_s / ring_steps_per_s
    pipelined = "every part moves on as soon as it is there"
    best_run = _outcome(outcomes, schedule_key("all-to-all", 32.0))
    staleness_ms = _staleness_ms(best_run)
    return [
        Row(
            "ring all-reduce: exchange, ms",
            None,
            planned.ring.pipelined_ms,
            reduced.measured("exchange_ms", "mean"),
            note=pipelined + _drops(reduced),
            failure=reduced.failure,
        ),
        Row(
            "ring all-reduce: exchange if every step waits for all, ms",
            None,
            planned.ring.synchronous_ms,
        ),
        Row(
            "ring all-reduce by PyTorch's Gloo: exchange, ms",
            measured=gloo.measured("exchange_ms", "mean"),
            note="sends a part when the receiver has said that it is ready: round trips on top" + _drops(gloo),
            failure=gloo.failure,
        ),
        Row(
            "ring all-reduce: islands idle",
            PUBLISHED_RING_IDLE_FRACTION,
            _idle(planned.ring.pipelined_ms),
            reduced.measured("idle_fraction"),
            note=f"{_ABOUT} 80 %; {pipelined}",
            failure=reduced.failure,
        ),
        Row(
            "ring all-reduce: islands idle if every step waits for all",
            None,
            _idle(planned.ring.synchronous_ms),
        ),
        Row(
            "ring all-reduce by PyTorch's Gloo: islands idle",
            measured=gloo.measured("idle_fraction"),
            failure=gloo.failure,
        ),
        Row(
            "overlapped training, triangles at 0 GB: share of the time that islands train",
            None,
            1.0,
            None if training is None else training["busy_fraction"],
            note=overlapped.note,
            within=MOST_DEVIATION,
            failure=overlapped.failure,
        ),
        Row(
            "steps per second: overlapped training against ring all-reduce",
            PUBLISHED_THROUGHPUT_RATIO,
            (planned.ring.pipelined_ms + STEP_MS) / STEP_MS,
            ratio,
            note=f"{_ABOUT} 5×",
            failure=overlapped.failure or reduced.failure,
        ),
        Row(
            "staleness of all-to-all at 32 GB, s",
            PUBLISHED_STALENESS_S,
            planned.schedules["all-to-all", 32.0].objective_ms / 1e3,
            None if staleness_ms is None else staleness_ms / 1e3,
            fitted=True,
            note=f"{_ABOUT} 1 s; which schedule was meant is not known",
            failure=best_run.failure,
        ),
    ]


def _drops(outcome: Outcome) -> str:
    """What a ring's TCP lost by filling the links' queues itself, which it then sends again."""
    dropped = outcome.measured("dropped_frames")
    return f"; TCP overfilled the links' queues by {dropped} frames" if dropped else ""


def _least_memory_gb(topology: Topology, enough: Callable[[Plan], bool]) -> float | None:
    """The least memory of all-to-all plans that are `enough`, by bisection; None if 32 GB are not."""

    def is_enough(memory_gb: float) -> bool:
        return enough(plan(topology, "all-to-all", memory_gb=memory_gb, payload_gb=REFERENCE_PAYLOAD_GB))

    low, high = 0.0, MEMORIES_GB[-1]
    if not is_enough(high):
        return None
    while high - low > _MEMORY_PRECISION_GB:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _time_ms(outcome: Outcome) -> float | None:
    time_ms: float | None = outcome.measured("round_time_ms", "median")
    return time_ms


def _staleness_ms(outcome: Outcome) -> float | None:
    time_ms, lifetime_rounds = _time_ms(outcome), outcome.measured("mean_divergence_lifetime_rounds")
    return None if time_ms is None or lifetime_rounds is None else time_ms * (lifetime_rounds + 0.5)


def _idle(exchange_ms: float | None) -> Value:
    return None if exchange_ms is None else exchange_ms / (exchange_ms + STEP_MS)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
