"""How fast an update spreads: survival curve S(k) and mean divergence lifetime A, in rounds.

An update is born at one island, in one round of the schedule; each round averages inside its cliques (an idle
island keeps what it has). S(k) is what is left, k rounds later, of the distance from "only the birth island has it"
to "all have an equal share", averaged over birth islands and birth rounds; A is the sum of S(k) over k ≥ 0.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.errors import PlanError

Rounds = Sequence[Sequence[Sequence[str]]]
_Matrix = NDArray[np.float64]

# The sum stops when what a whole pass adds is below this share of the total; the geometric rest is added.
_NEGLIGIBLE = 1e-13
_MAX_ROUNDS = 200_000


def _total_variation(spread: _Matrix) -> float:
    n = spread.shape[0]
    return float(np.abs(spread - 1.0 / n).sum() / (2.0 * n) / (1.0 - 1.0 / n))


def _coverage(spread: _Matrix) -> float:
    n = spread.shape[0]
    return float((spread == 0.0).sum() / (n * (n - 1)))


def _l2(spread: _Matrix) -> float:
    n = spread.shape[0]
    return float(np.sqrt(((spread - 1.0 / n) ** 2).sum(axis=0)).mean() / math.sqrt(1.0 - 1.0 / n))


def _frobenius(spread: _Matrix) -> float:
    n = spread.shape[0]
    return float(((spread - 1.0 / n) ** 2).sum() / (n - 1))


MEASURES: dict[str, Callable[[_Matrix], float]] = {
    "total-variation": _total_variation,
    "coverage": _coverage,
    "l2": _l2,
    "frobenius": _frobenius,
}
"""Measures by name. Each maps an N × N matrix, whose column j is the spread of the update born at j, to 0 … 1."""


@dataclass(frozen=True)
class Divergence:
    """Survival S(0), S(1), … down to a negligible value, and A = mean divergence lifetime in rounds."""

    survival: tuple[float, ...]
    mean_lifetime_rounds: float


def divergence(islands: Sequence[str], rounds: Rounds, measure: str = "total-variation") -> Divergence:
    """Survival curve and A of a repeating sequence of rounds; A is inf when it never mixes all islands.

    Raises PlanError for an unknown measure. For a schedule that never mixes globally the curve covers two passes.
    """
    if measure not in MEASURES:
        raise PlanError(f"unknown divergence measure {measure!r}: one of {', '.join(MEASURES)}")
    of = MEASURES[measure]
    n = len(islands)
    mixing = np.stack([mixing_matrix(islands, cliques) for cliques in rounds])
    period = len(mixing)
    mixes = _connected(mixing)
    spreads = np.broadcast_to(np.eye(n), mixing.shape)
    survival = [1.0]
    previous_pass = math.inf
    for k in range(1, _MAX_ROUNDS + 1 if mixes else 2 * period + 1):
        # Spread b belongs to updates born in round b: k rounds later it meets round b + k − 1.
        spreads = np.roll(mixing, -(k - 1), axis=0) @ spreads
        survival.append(sum(of(spread) for spread in spreads) / period)
        if mixes and k % period == 0:
            this_pass = sum(survival[-period:])
            if this_pass <= _NEGLIGIBLE * sum(survival):
                break
            previous_pass = this_pass
    if not mixes:
        return Divergence(tuple(survival), math.inf)
    ratio = this_pass / previous_pass
    rest = this_pass * ratio / (1.0 - ratio) if ratio < 1.0 else 0.0
    return Divergence(_without_noise(survival), sum(survival) + rest)


def mixing_matrix(islands: Sequence[str], cliques: Sequence[Sequence[str]]) -> _Matrix:
    """W of one round: an average inside each clique, identity for an island in none."""
    index = {island: position for position, island in enumerate(islands)}
    matrix = np.eye(len(islands))
    for clique in cliques:
        members = [index[island] for island in clique]
        matrix[np.ix_(members, members)] = 1.0 / len(members)
    return matrix


def grid_mean_lifetime_rounds(side: int, axes: int) -> float:
    """A (total variation) of a grid of side^axes islands whose rounds are its axes in turn: kN/(N−1) − 1/(m−1)."""
    islands = float(side) ** axes
    return axes * islands / (islands - 1) - 1.0 / (side - 1)


def _without_noise(survival: list[float]) -> tuple[float, ...]:
    # What is below rounding is 0: a schedule that mixes completely after k rounds ends its curve there.
    end = len(survival)
    while survival[end - 1] < 1e-12:
        end -= 1
    return (*survival[:end], 0.0)


def _connected(mixing: _Matrix) -> bool:
    met = np.any(mixing > 0.0, axis=0)
    reached = np.zeros(len(met), dtype=bool)
    reached[0] = True
    for _ in range(len(met)):
        reached |= np.any(met[:, reached], axis=1)
    return bool(reached.all())
