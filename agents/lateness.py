"""How late frames left their sender, and were taken in by their receiver, in figures for reports."""

import numpy as np
from numpy.typing import NDArray


def histogram(lateness_ns: NDArray[np.int64]) -> list[list[int]]:
    """[upper bound in µs, frames] for powers of two; empty ones are left out."""
    exponents = np.ceil(np.log2(np.maximum(lateness_ns / 1000, 1))).astype(int)
    return [[1 << exponent, count] for exponent, count in enumerate(np.bincount(exponents).tolist()) if count]


def figures_us(lateness_ns: NDArray[np.int64]) -> dict[str, float]:
    """Median, 99th percentile (nearest rank) and maximum, in µs; zeros if there was no frame."""
    ordered = np.sort(lateness_ns) / 1000
    if not len(ordered):
        return {"median": 0.0, "p99": 0.0, "max": 0.0}
    ranks = {"median": 0.5, "p99": 0.99, "max": 1.0}
    return {name: float(ordered[max(0, int(np.ceil(rank * len(ordered))) - 1)]) for name, rank in ranks.items()}
