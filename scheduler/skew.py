"""The smallest skew of a clique: how far apart first bytes stay at some receiver, whatever the offsets are.

It is the maximum cycle mean over senders of w(j → l) = max over receivers i of d_ji − d_li. A clique can do without
aggregator memory only if it is 0; with memory M it must slow down until (M/S)·D reaches it.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


def smallest_skew_ms(
    clique: tuple[str, ...], delay_ms: Mapping[str, Mapping[str, float]]
) -> tuple[float, tuple[str, ...]]:
    """Smallest possible skew in ms, and the cycle of senders that causes it. 0 for a pair."""
    if len(clique) < 3:
        return 0.0, clique
    weight = _weights(clique, delay_ms)
    mean = _maximum_cycle_mean(weight)
    return max(mean, 0.0), tuple(clique[k] for k in _critical_cycle(weight, mean))


def _weights(clique: tuple[str, ...], delay_ms: Mapping[str, Mapping[str, float]]) -> NDArray[np.float64]:
    n = len(clique)
    delay = np.array([[delay_ms[j][i] if i != j else 0.0 for i in clique] for j in clique])
    weight = np.full((n, n), -np.inf)
    for j in range(n):
        for other in range(n):
            if j != other:
                counted = np.delete(delay[j] - delay[other], [j, other])
                weight[j, other] = counted.max()
    return weight


def _maximum_cycle_mean(weight: NDArray[np.float64]) -> float:
    # Karp: walks of k edges from node 0, heaviest first; the graph is complete, so all cycles are reached.
    n = len(weight)
    heaviest = np.full((n + 1, n), -np.inf)
    heaviest[0, 0] = 0.0
    for k in range(1, n + 1):
        heaviest[k] = (heaviest[k - 1][:, None] + weight).max(axis=0)
    lengths = n - np.arange(n)
    with np.errstate(invalid="ignore"):
        means = (heaviest[n] - heaviest[:n]) / lengths[:, None]
    means[np.isneginf(heaviest[:n])] = np.inf
    return float(np.max(means.min(axis=0)))


def _critical_cycle(weight: NDArray[np.float64], mean: float) -> list[int]:
    # With the mean taken off, the heaviest walks become potentials, and a cycle lies along the tight edges.
    n = len(weight)
    reduced = weight - mean
    potential = np.zeros(n)
    for _ in range(n):
        potential = np.maximum(potential, (potential[:, None] + reduced).max(axis=0))
    before = (potential[:, None] + reduced).argmax(axis=0)
    node = int(potential.argmax())
    for _ in range(n):
        node = int(before[node])
    cycle = [node]
    while int(before[cycle[-1]]) != node:
        cycle.append(int(before[cycle[-1]]))
    return cycle[::-1]
