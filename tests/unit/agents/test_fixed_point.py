import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from agents.fixed_point import (
    headroom_bits,
    largest_integer,
    mean,
    quantise,
    scale_exponents,
    spread_exponents,
)

CLIQUES = st.integers(1, 64)
FLOATS = st.floats(-1e6, 1e6, width=32)


def exponents_like(values: np.ndarray, exponent: int) -> np.ndarray:
    return np.full(values.shape, exponent, np.int32)


@pytest.mark.parametrize(("size", "bits"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (64, 6)])
def test_headroom_is_the_ceiling_of_the_logarithm(size: int, bits: int) -> None:
    assert headroom_bits(size) == bits == math.ceil(math.log2(size))


def test_a_clique_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        headroom_bits(0)


@given(CLIQUES)
def test_sums_of_largest_integers_fit_int32(size: int) -> None:
    assert size * largest_integer(size) <= 2**31 - 1
    # One bit less of headroom would not do, so none is wasted.
    assert size == 1 or size * (2 * largest_integer(size) + 1) > 2**31 - 1


@given(st.floats(1e-30, 1e30), CLIQUES)
def test_the_exponent_is_the_finest_that_fits(value_range: float, size: int) -> None:
    (exponent,) = scale_exponents([value_range], size)
    limit = largest_integer(size)
    assert Fraction(value_range) * Fraction(2) ** exponent <= limit
    assert Fraction(value_range) * Fraction(2) ** (exponent + 1) > limit


@pytest.mark.parametrize("value_range", [0, -1, math.nan, math.inf])
def test_a_range_that_is_no_range_is_refused(value_range: float) -> None:
    with pytest.raises(ValueError, match="tensor 1"):
        scale_exponents([1.0, value_range], 9)


@given(arrays.arrays(np.float32, st.integers(0, 40), elements=FLOATS), st.integers(-10, 40), CLIQUES)
def test_error_is_at_most_half_a_step_and_the_residual_is_exactly_it(
    values: np.ndarray, exponent: int, size: int
) -> None:
    result = quantise(values, exponents_like(values, exponent), size)
    limit = largest_integer(size)
    saturated = 0
    for x, q, residual in zip(values.tolist(), result.integers.tolist(), result.residual.tolist(), strict=True):
        scaled = Fraction(x) * Fraction(2) ** exponent
        nearest = round(scaled)  # of a Fraction: half to even, without any rounding error
        if abs(nearest) > limit:
            saturated += 1
            assert (q, residual) == (math.copysign(limit, x), 0)
        else:
            assert q == nearest
            assert Fraction(residual) == Fraction(x) - q / Fraction(2) ** exponent
    assert (result.saturated, result.non_finite) == (saturated, 0)


def test_half_goes_to_even_and_saturation_begins_behind_the_limit() -> None:
    limit = largest_integer(9)
    values = np.array([0.5, 1.5, -0.5, -1.5, limit, limit + 0.25, limit + 1, -limit - 1, 1e300, -1e300])
    result = quantise(values, exponents_like(values, 0), 9)
    assert result.integers.tolist() == [0, 2, 0, -2, limit, limit, limit, -limit, limit, -limit]
    assert result.saturated == 4
    assert result.residual.tolist() == [0.5, -0.5, -0.5, 0.5, 0, 0.25, 0, 0, 0, 0]


def test_what_is_not_finite_is_sent_as_zero_and_counted() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    result = quantise(values, exponents_like(values, 4), 3)
    assert result.integers.tolist() == [0, 0, 0, 16]
    assert result.residual.tolist() == [0, 0, 0, 0]
    assert (result.saturated, result.non_finite) == (0, 3)


@given(arrays.arrays(np.float32, st.integers(1, 70), elements=FLOATS), st.randoms(use_true_random=False))
def test_the_position_of_a_value_does_not_matter(values: np.ndarray, random) -> None:  # type: ignore[no-untyped-def]
    order = list(range(len(values)))
    random.shuffle(order)
    straight = quantise(values, exponents_like(values, 7), 9).integers
    shuffled = quantise(values[order], exponents_like(values, 7), 9).integers
    assert shuffled.tolist() == straight[order].tolist()
    alone = [int(quantise(values[i : i + 1], exponents_like(values[:1], 7), 9).integers[0]) for i in range(len(values))]
    assert alone == straight.tolist()


@given(st.data(), CLIQUES)
def test_sums_are_exact_in_any_order(data: st.DataObject, size: int) -> None:
    values = data.draw(arrays.arrays(np.float32, (size, 3), elements=FLOATS))
    integers = quantise(values, exponents_like(values, 20), size).integers
    order = data.draw(st.permutations(range(size)))
    total = np.zeros(3, np.int32)
    for island in order:
        total += integers[island]
    assert total.tolist() == integers.astype(object).sum(axis=0).tolist()


@given(
    arrays.arrays(np.int32, 7, elements=st.integers(-(2**31), 2**31 - 1)),
    st.lists(st.integers(1, 64), min_size=3, max_size=3),
    st.lists(st.integers(-20, 40), min_size=7, max_size=7),
)
def test_the_mean_divides_by_each_chunks_own_contributors(
    total: np.ndarray, contributors: list[int], exponents: list[int]
) -> None:
    result = mean(total, np.array(contributors), 3, np.array(exponents, np.int32))
    for i, value in enumerate(result.tolist()):
        exact = Fraction(int(total[i]), contributors[i // 3]) / Fraction(2) ** exponents[i]
        assert value == float(exact)


def test_a_mean_of_nothing_is_refused() -> None:
    total, exponents = np.zeros(4, np.int32), np.zeros(4, np.int32)
    with pytest.raises(ValueError, match="no contributor"):
        mean(total, np.array([1, 0]), 2, exponents)
    with pytest.raises(ValueError, match="do not cover"):
        mean(total, np.array([1]), 2, exponents)


def test_exponents_are_spread_over_their_tensors() -> None:
    assert spread_exponents([2, 1], [5, -3]).tolist() == [5, 5, -3]
    with pytest.raises(ValueError, match="1 scale exponents for 2 tensors"):
        spread_exponents([2, 1], [5])
