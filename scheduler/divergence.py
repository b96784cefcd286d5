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

# The sum stops when a whole pass adds less than this share of it, or when passes have become geometric: each is the
# same share of the one before, to this part of what is missing to 1. The geometric rest is added.
_NEGLIGIBLE = 1e-11
_STEADY = 1e-9
_MAX_ROUNDS = 200_000


def _total_variation(spread: _Matrix) -> _Matrix:
    n = spread.shape[-1]
    value: _Matrix = np.abs(spread - 1.0 / n).sum(axis=(-2, -1)) / (2.0 * (n - 1.0))
    return value


def _coverage(spread: _Matrix) -> _Matrix:
    n = spread.shape[-1]
    value: _Matrix = np.sum(spread == 0.0, axis=(-2, -1)) / (n * (n - 1.0))
    return value


def _l2(spread: _Matrix) -> _Matrix:
    n = spread.shape[-1]
    value: _Matrix = np.sqrt(((spread - 1.0 / n) ** 2).sum(axis=-2)).mean(axis=-1) / math.sqrt(1.0 - 1.0 / n)
    return value


def _frobenius(spread: _Matrix) -> _Matrix:
    n = spread.shape[-1]
    value: _Matrix = ((spread - 1.0 / n) ** 2).sum(axis=(-2, -1)) / (n - 1.0)
    return value


MEASURES: dict[str, Callable[[_Matrix], _Matrix]] = {
    "total-variation": _total_variation,
    "coverage": _coverage,
    "l2": _l2,
    "frobenius": _frobenius,
}
"""Measures by name. Each maps N × N matrices, whose column j is the spread of the update born at j, to 0 … 1."""


@dataclass(frozen=True)
class Divergence:
    """Survival S(0), S(1), … down to a negligible value, or to where it falls by the same share in every pass; and A =
    mean divergence lifetime in rounds, with what follows."""

    survival: tuple[float, ...]
    mean_lifetime_rounds: float


def divergence(islands: Sequence[str], rounds: Rounds, measure: str = "total-variation") -> Divergence:
    """Survival curve and A of a repeating sequence of rounds; A is inf when it never mixes all islands.

    Raises PlanError for an unknown measure. For a schedule that never mixes globally the curve covers two passes.
    """
    curves = _by_birth_round(islands, rounds, measure)
    survival = curves.by_birth.mean(axis=0)
    if not curves.mixes:
        return Divergence(tuple(map(float, survival)), math.inf)
    return Divergence(_without_noise(survival), float(survival.sum() + curves.rest.mean()))


def back_to_back_objective_ms(
    islands: Sequence[str], rounds: Rounds, times_ms: Sequence[float], measure: str = "total-variation"
) -> float:
    """The objective in seconds rather than rounds, for rounds that start back to back: each takes its own time.

    An update is born at any instant with equal probability, so in round b − 1 with probability T_b−1/ΣT; it waits for
    the next round, on average T_b−1/2, and then S_b(k) of it is outstanding for T_b+k. With equal times this is
    T·(A + 1/2). The times must be finite and above 0.
    """
    curves = _by_birth_round(islands, rounds, measure)
    if not curves.mixes:
        return math.inf
    times = np.array(times_ms, dtype=float)
    total = 0.0
    for birth, survival in enumerate(curves.by_birth):
        before = times[birth - 1]
        following = np.resize(np.roll(times, -birth), len(survival))
        outstanding = float(survival @ following) + curves.rest[birth] * times.mean()
        total += before / times.sum() * (before / 2.0 + outstanding)
    return float(total)


@dataclass(frozen=True)
class _Curves:
    by_birth: _Matrix  # birth rounds × k: survival of what is born in that round
    rest: _Matrix  # what the curve's tail adds to its sum, by birth round
    mixes: bool


def _by_birth_round(islands: Sequence[str], rounds: Rounds, measure: str) -> _Curves:
    if measure not in MEASURES:
        raise PlanError(f"unknown divergence measure {measure!r}: one of {', '.join(MEASURES)}")
    of = MEASURES[measure]
    n = len(islands)
    mixing = np.stack([mixing_matrix(islands, cliques) for cliques in rounds])
    period = len(mixing)
    mixes = _connected(mixing)
    spreads = np.broadcast_to(np.eye(n), mixing.shape)
    columns = [np.ones(period)]
    previous_pass = np.full(period, math.inf)
    previous_ratio = np.full(period, math.inf)
    rest = np.zeros(period)
    total = 1.0
    for k in range(1, _MAX_ROUNDS + 1 if mixes else 2 * period + 1):
        # Spread b belongs to updates born in round b: k rounds later it meets round b + k − 1.
        spreads = np.roll(mixing, -(k - 1), axis=0) @ spreads
        columns.append(of(spreads))
        if mixes and k % period == 0:
            this_pass = np.sum(columns[-period:], axis=0)
            ratio = this_pass / np.maximum(previous_pass, 1e-300)
            rest = np.where(ratio < 1.0, this_pass * ratio / np.maximum(1.0 - ratio, 1e-12), 0.0)
            steady = np.abs(ratio - previous_ratio) <= _STEADY * np.maximum(1.0 - ratio, 0.0)
            total += this_pass.max()
            if this_pass.max() <= _NEGLIGIBLE * total or steady.all():
                break
            previous_pass, previous_ratio = this_pass, ratio
    return _Curves(np.array(columns).T, rest, mixes)


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


def _without_noise(survival: _Matrix) -> tuple[float, ...]:
    # What is below rounding is 0: a schedule that mixes completely after k rounds ends its curve there.
    end = len(survival)
    while survival[end - 1] < 1e-12:
        end -= 1
    return (*map(float, survival[:end]), *([0.0] if end < len(survival) else []))


def _connected(mixing: _Matrix) -> bool:
    met = np.any(mixing > 0.0, axis=0)
    reached = np.zeros(len(met), dtype=bool)
    reached[0] = True
    for _ in range(len(met)):
        reached |= np.any(met[:, reached], axis=1)
    return bool(reached.all())
