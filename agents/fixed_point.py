"""Fixed point: how floating-point parameters become integers that any number of islands can sum exactly.

A value x of a tensor with exponent e is sent as the integer q = round(x · 2^e), half to even: value = q · 2^−e.
With w bits, a clique of n islands leaves ⌈log2 n⌉ of them as headroom: |q| ≤ 2^(w − 1 − ⌈log2 n⌉) − 1, so that the sum
of n fits as well. w is 32; or 16 or 8, and several values share a word (`agents.lanes`). Integer sums do not depend on
the order of arrival. All scaling is by powers of two, in float64, where it is exact; every value goes through the same
operations wherever it stands.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_EXPONENT = 200
"""Enough for ranges down to 1e-50, and far from float64's limits."""

_POWERS = np.ldexp(1.0, np.arange(-2 * MAX_EXPONENT, 2 * MAX_EXPONENT + 1))


@dataclass(frozen=True)
class Quantised:
    """`integers` (int32) and `residual` (float32: what rounding took away, at most 2^−(e+1)) have the values' shape."""

    integers: NDArray[np.int32]
    residual: NDArray[np.float32]
    saturated: int
    non_finite: int


def headroom_bits(clique_size: int) -> int:
    """⌈log2 clique_size⌉. Raises ValueError below 1."""
    if clique_size < 1:
        raise ValueError(f"clique_size is {clique_size}, it must be at least 1")
    return (clique_size - 1).bit_length()


def largest_integer(clique_size: int, bits: int = 32) -> int:
    """The largest |q| that each of `clique_size` islands may send. Raises ValueError if no bits are left for it."""
    left = bits - 1 - headroom_bits(clique_size)
    if left < 1:
        raise ValueError(f"{bits} bits are too few for the sums of {clique_size} islands")
    return (1 << left) - 1


def scale_exponents(ranges: Sequence[float], max_clique_size: int, bits: int = 32) -> list[int]:
    """The finest exponent e for each tensor: range · 2^e just fits an integer with the headroom of the largest clique.

    `ranges` are the largest magnitudes that the tensors' values are expected to have. Raises ValueError for a range
    that is not a positive number.
    """
    limit = largest_integer(max_clique_size, bits)
    exponents = []
    for position, value_range in enumerate(ranges):
        if not (math.isfinite(value_range) and value_range > 0):
            raise ValueError(f"range {value_range} of tensor {position} must be a positive number")
        exponent = math.frexp(limit)[1] - math.frexp(value_range)[1] + 1
        while math.ldexp(value_range, exponent) > limit:
            exponent -= 1
        exponents.append(min(exponent, MAX_EXPONENT))
    return exponents


def spread_exponents(sizes: Sequence[int], exponents: Sequence[int]) -> NDArray[np.int32]:
    """One exponent per value, for tensors of `sizes` values laid end to end.

    Raises ValueError if the two differ in length.
    """
    if len(sizes) != len(exponents):
        raise ValueError(f"{len(exponents)} scale exponents for {len(sizes)} tensors")
    return np.repeat(np.asarray(exponents, np.int32), np.asarray(sizes, np.int64))


def quantise(
    values: NDArray[np.floating[Any]], exponents: NDArray[np.int32], clique_size: int, bits: int = 32
) -> Quantised:
    """Round `values` to integers that `clique_size` islands can sum in `bits` bits.

    `values` and `exponents` have one shape. A value beyond the largest integer becomes that integer with its sign and
    is counted as saturated; one that is not a number, or infinite, becomes 0 and is counted as non-finite. Neither
    leaves a residual: an excess that is carried along would wind up round by round.
    """
    limit = largest_integer(clique_size, bits)
    wide = values.astype(np.float64)
    finite = np.isfinite(wide)
    non_finite = wide.size - np.count_nonzero(finite)
    if non_finite:
        wide[~finite] = 0
    powers = _powers_of_two(exponents)
    wide *= powers
    rounded = np.rint(wide)
    residual = (wide - rounded) / powers
    saturated = 0
    if max(rounded.max(initial=0), -rounded.min(initial=0)) > limit:
        too_large = np.abs(rounded) > limit
        saturated = int(np.count_nonzero(too_large))
        residual[too_large] = 0
        np.clip(rounded, -limit, limit, out=rounded)
    return Quantised(rounded.astype(np.int32), residual.astype(np.float32), saturated, int(non_finite))


def mean(
    total: NDArray[np.int32] | NDArray[np.float32],
    contributors: NDArray[np.integer[Any]],
    values_per_chunk: int,
    exponents: NDArray[np.int32],
) -> NDArray[np.float64]:
    """The mean of each value: total / contributors of its chunk · 2^−e, with one rounding (of the division) in float64.

    `total` and `exponents` have one entry per value, `contributors` one per chunk of `values_per_chunk` values. Raises
    ValueError if a chunk has no contributor or the chunks do not cover the values.
    """
    if len(contributors) * values_per_chunk < len(total):
        raise ValueError(f"{len(contributors)} chunks of {values_per_chunk} values do not cover {len(total)} values")
    if len(contributors) and contributors.min() < 1:
        raise ValueError("a chunk has no contributor: nothing to average")
    averaged = total.astype(np.float64)
    if len(contributors) and contributors.min() == contributors.max():
        averaged /= float(contributors[0])
    else:
        averaged /= np.repeat(contributors.astype(np.float64), values_per_chunk)[: len(total)]
    averaged /= _powers_of_two(exponents)
    return averaged


def _powers_of_two(exponents: NDArray[np.int32]) -> NDArray[np.float64]:
    """2^e of each; products and quotients with them are exact. A table is much faster than as many calls of ldexp."""
    powers: NDArray[np.float64] = _POWERS[exponents + len(_POWERS) // 2]
    return powers
