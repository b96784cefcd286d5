"""The number format f32, for comparison with fixed point: sums of floats depend on the order of addition."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUMBER_FORMAT = 1  # in packets: docs/wire-format.md
_SMALLEST_NORMAL = np.finfo(np.float32).smallest_normal


@dataclass(frozen=True)
class Cleaned:
    """`floats`: finite, and no denormals; how many values were none, and were made 0."""

    floats: NDArray[np.float32]
    saturated: int
    non_finite: int
    denormal: int


def clean(values: NDArray[np.floating[Any]]) -> Cleaned:
    """`values` as float32 that every adder adds alike.

    A value beyond the largest float32 becomes that with its sign and is counted as saturated; one that is not a number,
    or infinite, becomes 0 and is counted as non-finite: one of them would spoil the sums of a whole clique. A denormal
    becomes 0 and is counted: many adders flush them.
    """
    finite = np.isfinite(values)
    largest = np.finfo(np.float32).max
    kept = np.where(finite, values, 0)
    saturated = np.abs(kept) > largest
    floats = np.clip(kept, -largest, largest).astype(np.float32)
    denormal = (floats != 0) & (np.abs(floats) < _SMALLEST_NORMAL)
    floats[denormal] = 0
    return Cleaned(
        floats,
        saturated=int(np.count_nonzero(saturated)),
        non_finite=int(np.count_nonzero(~finite)),
        denormal=int(np.count_nonzero(denormal)),
    )
