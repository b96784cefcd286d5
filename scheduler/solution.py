"""What a solved round is, how it is checked against every constraint, and how much memory it needs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.errors import SolverError
from scheduler.exchange import Exchange

CAPACITY_TOLERANCE = 1e-7
_TIME_TOLERANCE = 1e-7
_BINDING = 1e-6


@dataclass(frozen=True)
class RoundSolution:
    """Offsets and durations of every sender, in ms, and the round time T."""

    time_ms: float
    offset_ms: Mapping[str, float]
    duration_ms: Mapping[str, float]


@dataclass(frozen=True)
class Infeasible:
    """No offsets and durations meet the constraints; `reason` is one line that names clique and cycle."""

    reason: str


def occupancy_gb(arrivals: Mapping[str, tuple[float, float]], payload_gb: float) -> float:
    """Peak memory at one aggregator, for streams given as (first arrival, duration) in ms.

    Sums accumulate in place, so what is held is the maximum over ordered pairs of X_j − X_k, where X_j(u) is what has
    come of stream j; a difference of two ramps has its maximum at a first or a last byte.
    """
    instants = [u for start, duration in arrivals.values() for u in (start, start + duration)]
    peak = 0.0
    for u in instants:
        shares = [min(max((u - start) / duration, 0.0), 1.0) for start, duration in arrivals.values()]
        peak = max(peak, max(shares) - min(shares))
    return payload_gb * peak


def arrivals_at(exchange: Exchange, solution: RoundSolution, receiver: str) -> dict[str, tuple[float, float]]:
    """(first arrival, duration) in ms of every stream that the receiver gets, by sender."""
    return {
        sender: (solution.offset_ms[sender] + delays[receiver], solution.duration_ms[sender])
        for sender, delays in exchange.delay_ms.items()
        if receiver in delays
    }


def peak_memory_gb(exchange: Exchange, solution: RoundSolution) -> dict[str, float]:
    """Peak aggregator memory of every island that receives in this round."""
    return {
        receiver: occupancy_gb(arrivals_at(exchange, solution, receiver), exchange.payload_gb)
        for clique in exchange.cliques
        for receiver in clique
    }


def check(exchange: Exchange, solution: RoundSolution) -> None:
    """Re-check a solution against rows (1) to (5) in full precision. Raises SolverError naming what does not hold."""
    slack_ms = _TIME_TOLERANCE * max(solution.time_ms, 1e-3)
    for sender, delays in exchange.delay_ms.items():
        offset, duration = solution.offset_ms[sender], solution.duration_ms[sender]
        if not (math.isfinite(offset) and offset >= -slack_ms and math.isfinite(duration) and duration > 0):
            raise SolverError(f"{sender} has offset {offset} ms and duration {duration} ms")
        if duration < exchange.least_duration_ms[sender] - slack_ms:
            raise SolverError(f"{sender} sends faster than the access links allow: {duration} ms")
        for receiver, delay in delays.items():
            if offset + delay + duration > solution.time_ms + slack_ms:
                raise SolverError(f"the stream of {sender} ends at {receiver} after T = {solution.time_ms} ms")
    for shared in exchange.shared:
        load = load_of(shared.sigma_ms, shared.copies, solution)
        if load > 1.0 + CAPACITY_TOLERANCE:
            raise SolverError(f"{shared.name} is loaded {load:.9f} times its capacity")
    if not exchange.needs_no_alignment:
        memory_gb = exchange.memory_share * exchange.payload_gb
        for receiver, peak in peak_memory_gb(exchange, solution).items():
            if peak > memory_gb + _TIME_TOLERANCE * exchange.payload_gb:
                raise SolverError(f"memory at {receiver} reaches {peak} GB of {memory_gb} GB")


def load_of(sigma_ms: float, copies: Mapping[str, int], solution: RoundSolution) -> float:
    """How much of its capacity something shared is asked for while all its streams run: 1 is full."""
    return sum(count * sigma_ms / solution.duration_ms[sender] for sender, count in copies.items())


def binding(exchange: Exchange, solution: RoundSolution) -> tuple[str, ...]:
    """Names of what is used to the full in this round: links, access links and memories."""
    names = [
        shared.name for shared in exchange.shared if load_of(shared.sigma_ms, shared.copies, solution) >= 1.0 - _BINDING
    ]
    names += [
        f"access of {sender}"
        for sender in exchange.senders
        if solution.duration_ms[sender] <= exchange.least_duration_ms[sender] * (1.0 + _BINDING)
    ]
    if not exchange.needs_no_alignment:
        memory_gb = exchange.memory_share * exchange.payload_gb
        several = {receiver for clique in exchange.cliques if len(clique) > 2 for receiver in clique}
        names += [
            f"memory {receiver}"
            for receiver, peak in peak_memory_gb(exchange, solution).items()
            if receiver in several and peak >= memory_gb - _BINDING * exchange.payload_gb
        ]
    return tuple(names)
