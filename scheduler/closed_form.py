"""Rounds that need no linear program: enough memory (M ≥ S), or none (M = 0).

In both, every sender's stream ends exactly at T at its last receiver: D_j = T − P_j, where P_j is known beforehand.
M ≥ S: all start at 0 and P_j is the largest delay of j. M = 0: all first and all last bytes of a clique of three or
more coincide at every receiver, which fixes the offsets up to a shift; P is the latest first byte in the clique.
T is then the smallest time at which nothing shared is over its capacity: Σ_j copies·σ/(T − P_j) ≤ 1.
"""

from collections.abc import Iterable, Mapping

from scheduler.exchange import Exchange, Shared
from scheduler.skew import smallest_skew_ms
from scheduler.solution import Infeasible, RoundSolution

# Delays come from files in decimal: sums that differ by less than this (relative) are meant to be equal.
_EQUAL = 1e-9


def applies(exchange: Exchange) -> bool:
    """True when the round has a closed form: M ≥ S, M = 0, or no clique of three or more."""
    return exchange.needs_no_alignment or exchange.memory_share == 0.0 or max(map(len, exchange.cliques), default=0) < 3


def solve(exchange: Exchange) -> RoundSolution | Infeasible:
    """The optimum of a round to which this applies. Of all optima it is the one with the longest durations."""
    offset_ms = dict.fromkeys(exchange.senders, 0.0)
    preceding_ms = {sender: max(delays.values()) for sender, delays in exchange.delay_ms.items()}
    if not exchange.needs_no_alignment:
        for clique in exchange.cliques:
            if len(clique) < 3:
                continue
            aligned = aligned_offsets_ms(clique, exchange.delay_ms)
            if aligned is None:
                return misaligned(clique, exchange.delay_ms)
            offset_ms.update(aligned)
            last = max(aligned[j] + exchange.delay_ms[j][i] for j in clique for i in clique if i != j)
            preceding_ms.update(dict.fromkeys(clique, last))
    time_ms = round_time_ms(preceding_ms, exchange.least_duration_ms, exchange.shared)
    duration_ms = {sender: time_ms - preceding_ms[sender] for sender in exchange.senders}
    return RoundSolution(time_ms, offset_ms, duration_ms)


def round_time_ms(
    preceding_ms: Mapping[str, float], least_duration_ms: Mapping[str, float], shared: Iterable[Shared]
) -> float:
    """The smallest T with D_j = T − P_j that meets rows (4) and (5); 0 when nobody sends."""
    time_ms = max((preceding_ms[sender] + least for sender, least in least_duration_ms.items()), default=0.0)
    for resource in shared:
        terms = [(count * resource.sigma_ms, preceding_ms[sender]) for sender, count in resource.copies.items()]
        if sum(work / (time_ms - p) if time_ms > p else float("inf") for work, p in terms) > 1.0:
            time_ms = _root(terms)
    return time_ms


def _root(terms: list[tuple[float, float]]) -> float:
    # f(T) = Σ w/(T − p) falls and is convex, so Newton's steps from where f ≥ 1 go up to the root and never past it.
    time_ms = max(p + work for work, p in terms)
    while True:
        value = sum(work / (time_ms - p) for work, p in terms)
        slope = sum(work / (time_ms - p) ** 2 for work, p in terms)
        step = (value - 1.0) / slope
        if step <= 1e-13 * time_ms:
            return time_ms
        time_ms += step


def aligned_offsets_ms(clique: tuple[str, ...], delay_ms: Mapping[str, Mapping[str, float]]) -> dict[str, float] | None:
    """Offsets (smallest 0) with which all first bytes coincide at every receiver of a clique of three or more, if any.

    At receiver i the senders j and k must differ by t_j − t_k = d_ki − d_ji. The receivers must agree about that:
    in a triangle the delays clockwise and counter-clockwise have the same sum; in a larger clique all routes look as
    if they went through one hub.
    """
    first, second, *_ = clique
    offset = {first: 0.0}
    for j in clique[1:]:
        witness = second if j != second else clique[2]
        offset[j] = delay_ms[first][witness] - delay_ms[j][witness]
    scale = max(delay for j in clique for delay in delay_ms[j].values())
    for i in clique:
        arrivals = [offset[j] + delay_ms[j][i] for j in clique if j != i]
        if max(arrivals) - min(arrivals) > _EQUAL * max(scale, 1.0):
            return None
    earliest = min(offset.values())
    return {j: t - earliest for j, t in offset.items()}


def misaligned(clique: tuple[str, ...], delay_ms: Mapping[str, Mapping[str, float]]) -> Infeasible:
    """The reason why a clique has no such offsets."""
    skew_ms, cycle = smallest_skew_ms(clique, delay_ms)
    return Infeasible(
        f"clique {' '.join(clique)} cannot do without aggregator memory: around the cycle "
        f"{' > '.join([*cycle, cycle[0]])} first bytes stay {skew_ms:.4g} ms apart whatever the offsets; "
        "give the aggregators memory, or use pairs or triangles"
    )
