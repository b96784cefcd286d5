"""From plans and runs to the rows of the comparison."""

import math
from collections.abc import Callable, Mapping

from scheduler.plan import Plan
from scheduler.planner import plan
from scheduler.ring import best_ring
from scheduler.topology import Topology
from testbed.paper.experiments import (
    GLOO_RING,
    MEMORIES_GB,
    MOST_DEVIATION,
    OVERLAPPED,
    RING,
    SEARCH,
    Outcome,
    schedule_key,
)
from testbed.paper.row import Row, Value
from testbed.policies import COMPARED
from testbed.run.settings import REFERENCE_PAYLOAD_GB, RunSettings

# What was published of a simulation of nine cities. Nothing else is known here: every other row has no such figure.
PUBLISHED_ROUND_TIME_MS = {("triangles", 0.0): 565.0, ("all-to-all", 32.0): 676.0}
PUBLISHED_RING_IDLE_FRACTION = 0.8
PUBLISHED_THROUGHPUT_RATIO = 5.0
PUBLISHED_STALENESS_S = 1.0

MOST_LIFETIME_DEVIATION = 0.01

_ABOUT = "published as about"
_MEMORY_PRECISION_GB = 1e-4
_SHORTEST = 1.0 + 1e-6

Outcomes = Mapping[str, Outcome]


def rows(topology: Topology, outcomes: Outcomes) -> list[Row]:
    """All rows, in the order in which they are shown."""
    step_ms = RunSettings().training.step_ms
    plans = {
        (policy, memory_gb): plan(topology, policy, memory_gb=memory_gb, payload_gb=REFERENCE_PAYLOAD_GB)
        for policy in COMPARED
        for memory_gb in MEMORIES_GB
    }
    found: list[Row] = []
    for (policy, memory_gb), planned in plans.items():
        found += _schedule_rows(policy, memory_gb, planned, outcomes)
    for memory_gb in MEMORIES_GB:
        outcome = outcomes[schedule_key(SEARCH, memory_gb)]
        if outcome.summary is not None:
            found += _found_rows(memory_gb, outcome)
    found += _memory_rows(topology, plans, outcomes)
    found += _ablation_rows(topology, outcomes, step_ms)
    found += _throughput_rows(topology, plans, outcomes, step_ms)
    return found


def _schedule_rows(policy: str, memory_gb: float, planned: Plan, outcomes: Outcomes) -> list[Row]:
    outcome = outcomes[schedule_key(policy, memory_gb)]
    what = f"{policy} at {memory_gb:g} GB"
    published = PUBLISHED_ROUND_TIME_MS.get((policy, memory_gb))
    feasible = Row(
        f"{what}: feasible",
        True if published is not None else None,
        planned.feasible,
        outcome.summary is not None,
        note=planned.reason or "",
    )
    if not planned.feasible:
        return [feasible]
    note = "" if math.isfinite(planned.mean_divergence_lifetime_rounds) else "never mixes all islands"
    time_ms, lifetime = outcome.measured("round_time_ms", "median"), _lifetime(outcome)
    return [
        feasible,
        _time_row(what, published, planned.round_time_ms, time_ms),
        _lifetime_row(what, _finite(planned.mean_divergence_lifetime_rounds), lifetime, note),
        Row(
            f"{what}: staleness T·(A + 1/2), ms",
            None,
            _finite(planned.objective_ms),
            _staleness_ms(time_ms, lifetime),
            published is not None,
            note,
        ),
    ]


def _time_row(what: str, published: float | None, planned_ms: float, time_ms: float | None) -> Row:
    fitted = published is not None
    return Row(f"{what}: round time T, ms", published, planned_ms, time_ms, fitted, within=MOST_DEVIATION)


def _lifetime_row(what: str, planned: float | None, lifetime: float | None, note: str = "") -> Row:
    quantity = f"{what}: divergence lifetime A, rounds"
    return Row(quantity, None, planned, lifetime, note=note, within=MOST_LIFETIME_DEVIATION)


def _found_rows(memory_gb: float, outcome: Outcome) -> list[Row]:
    """What the search found, which is no published schedule."""
    assert outcome.summary is not None
    predicted = outcome.summary["predicted"]
    what = f"best schedule found at {memory_gb:g} GB"
    time_ms, lifetime = outcome.measured("round_time_ms", "median"), _lifetime(outcome)
    planned_lifetime = predicted["mean_divergence_lifetime_rounds"]
    return [
        _time_row(what, None, predicted["round_time_ms"], time_ms),
        _lifetime_row(what, planned_lifetime, lifetime),
        Row(
            f"{what}: staleness T·(A + 1/2), ms",
            None,
            predicted["objective_ms"],
            _staleness_ms(time_ms, lifetime),
            note="not among the published schedules",
        ),
    ]


def _memory_rows(topology: Topology, plans: Mapping[tuple[str, float], Plan], outcomes: Outcomes) -> list[Row]:
    shortest_ms = plans["all-to-all", 32.0].round_time_ms
    triangles_ms = plans["triangles", 0.0].objective_ms
    run = outcomes[schedule_key("all-to-all", 32.0)].summary
    return [
        Row(
            "all-to-all: memory from which its round takes no longer than with 32 GB, GB",
            None,
            _least_memory_gb(topology, lambda planned: planned.round_time_ms <= shortest_ms * _SHORTEST),
            None if run is None else run["memory"]["measured_peak_gb"],
            note="measured: the fullest aggregator; packets and jitter come on top of the plan",
        ),
        Row(
            "all-to-all: memory from which it is less stale than triangles without memory, GB",
            None,
            _least_memory_gb(topology, lambda planned: planned.objective_ms < triangles_ms),
        ),
    ]


def _ablation_rows(topology: Topology, outcomes: Outcomes, step_ms: float) -> list[Row]:
    """All-to-all after every step, as synchronous training has it, with and without the network's help."""
    found = []
    for multicast in ("multicast", "unicast"):
        for aggregation in ("edge", "host"):
            planned = plan(
                topology,
                "all-to-all",
                memory_gb=32.0,
                payload_gb=REFERENCE_PAYLOAD_GB,
                multicast="unicast" if multicast == "unicast" else "direct",
                aggregation=aggregation,
            )
            outcome = outcomes[schedule_key("all-to-all", 32.0, multicast, aggregation)]
            what = f"synchronous SGD, {multicast}, summed at the {aggregation}"
            time_ms = outcome.measured("round_time_ms", "median")
            found += [
                Row(f"{what}: exchange, ms", None, planned.round_time_ms, time_ms),
                Row(
                    f"{what}: islands idle",
                    None,
                    _idle(planned.round_time_ms, step_ms),
                    _idle(time_ms, step_ms),
                    note=f"exchange / (exchange + {step_ms:g} ms of computing)",
                ),
            ]
    return found


def _throughput_rows(
    topology: Topology, plans: Mapping[tuple[str, float], Plan], outcomes: Outcomes, step_ms: float
) -> list[Row]:
    ring = best_ring(topology, REFERENCE_PAYLOAD_GB)
    reduced, gloo, overlapped = outcomes[RING], outcomes[GLOO_RING], outcomes[OVERLAPPED]
    training = None if overlapped.summary is None else overlapped.summary["training"]
    steps_per_s = None if training is None else training["steps_per_s"]
    ring_steps_per_s = reduced.measured("steps_per_s")
    ratio = None if steps_per_s is None or ring_steps_per_s is None else steps_per_s / ring_steps_per_s
    pipelined = "every part moves on as soon as it is there"
    best = plans["all-to-all", 32.0]
    best_run = outcomes[schedule_key("all-to-all", 32.0)]
    staleness_ms = _staleness_ms(best_run.measured("round_time_ms", "median"), _lifetime(best_run))
    return [
        Row(
            "ring all-reduce: exchange, ms",
            None,
            ring.pipelined_ms,
            reduced.measured("exchange_ms", "mean"),
            note=pipelined,
        ),
        Row(
            "ring all-reduce: exchange if every step waits for all, ms",
            None,
            ring.synchronous_ms,
        ),
        Row(
            "ring all-reduce by PyTorch's Gloo: exchange, ms",
            measured=gloo.measured("exchange_ms", "mean"),
            note="sends a part when the receiver has said that it is ready: round trips on top",
        ),
        Row(
            "ring all-reduce: islands idle",
            PUBLISHED_RING_IDLE_FRACTION,
            _idle(ring.pipelined_ms, step_ms),
            reduced.measured("idle_fraction"),
            note=f"{_ABOUT} 80 %; {pipelined}",
        ),
        Row(
            "ring all-reduce: islands idle if every step waits for all",
            None,
            _idle(ring.synchronous_ms, step_ms),
        ),
        Row("ring all-reduce by PyTorch's Gloo: islands idle", measured=gloo.measured("idle_fraction")),
        Row(
            "overlapped training, triangles at 0 GB: share of the time that islands train",
            None,
            1.0,
            None if training is None else training["busy_fraction"],
        ),
        Row(
            "steps per second: overlapped training against ring all-reduce",
            PUBLISHED_THROUGHPUT_RATIO,
            (ring.pipelined_ms + step_ms) / step_ms,
            ratio,
            note=f"{_ABOUT} 5×",
        ),
        Row(
            "staleness of all-to-all at 32 GB, s",
            PUBLISHED_STALENESS_S,
            best.objective_ms / 1e3,
            None if staleness_ms is None else staleness_ms / 1e3,
            fitted=True,
            note=f"{_ABOUT} 1 s; which schedule was meant is not known",
        ),
    ]


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


def _lifetime(outcome: Outcome) -> float | None:
    lifetime: float | None = outcome.measured("mean_divergence_lifetime_rounds")
    return lifetime


def _staleness_ms(time_ms: float | None, lifetime_rounds: float | None) -> float | None:
    return None if time_ms is None or lifetime_rounds is None else time_ms * (lifetime_rounds + 0.5)


def _idle(exchange_ms: float | None, step_ms: float) -> Value:
    return None if exchange_ms is None else exchange_ms / (exchange_ms + step_ms)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
