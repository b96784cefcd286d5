"""Survival and lifetime of mixing that was measured, against those of the plan and known values."""

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler.divergence import divergence, mixing_matrix
from testbed.run.mixing import measured_divergence

BLOCK = np.full((3, 3), 1 / 3)
ROWS: NDArray[np.float64] = np.kron(np.eye(3), BLOCK)
COLUMNS: NDArray[np.float64] = np.kron(BLOCK, np.eye(3))


def test_known_lifetimes() -> None:
    everyone = measured_divergence([np.full((9, 9), 1 / 9)] * 3, 1)
    assert everyone is not None
    assert (everyone.survival, everyone.mean_lifetime_rounds) == (pytest.approx((1, 0)), pytest.approx(1))
    grid = measured_divergence([ROWS, COLUMNS, ROWS], 2)  # the third round is of a pass that was not finished
    assert grid is not None
    assert grid.survival == pytest.approx((1, 3 / 4, 0))
    assert grid.mean_lifetime_rounds == pytest.approx(7 / 4)


def test_a_pass_of_pairs_has_the_planned_curve() -> None:
    islands = [f"i{number}" for number in range(5)]
    rounds = [[[islands[(k + j) % 5], islands[(k - j) % 5]] for j in (1, 2)] for k in range(5)]
    planned = divergence(islands, rounds)
    measured = measured_divergence([mixing_matrix(islands, cliques) for cliques in rounds], 5)
    assert measured is not None
    assert measured.mean_lifetime_rounds == pytest.approx(planned.mean_lifetime_rounds, rel=1e-6)
    assert measured.survival[:12] == pytest.approx(planned.survival[:12])


def test_what_does_not_mix_has_no_lifetime_and_what_did_not_run_no_curve() -> None:
    regions = measured_divergence([ROWS] * 5, 1)
    assert regions is not None
    assert regions.mean_lifetime_rounds is None
    assert regions.survival[-1] == pytest.approx(3 / 4)
    assert measured_divergence([ROWS], 2) is None


def test_a_lost_contribution_changes_the_lifetime_a_little() -> None:
    """Island 0 lacked island 8's contribution for a tenth of the values: the weights are no longer all alike."""
    lossy = np.full((9, 9), 1 / 9)
    lossy[0] = 0.9 / 9 + 0.1 / 8
    lossy[0, 8] = 0.9 / 9
    measured = measured_divergence([lossy, *[np.full((9, 9), 1 / 9)] * 9], 1)
    assert measured is not None
    assert measured.mean_lifetime_rounds == pytest.approx(1, rel=0.01)
    assert measured.mean_lifetime_rounds > 1
