"""The check of every sum finds what is wrong, and only that."""

from pathlib import Path

import numpy as np
import pytest

from agents.exchange_area import ExchangeArea, map_exchange_area
from testbed.run.verification import check_round

VALUES, PER_CHUNK = 10, 4  # chunks of 4, 4 and 2 values
ROUND = 5  # row 1 of 4


@pytest.fixture
def areas(tmp_path: Path) -> list[ExchangeArea]:
    """Three islands after an exchange of all three in which everything arrived."""
    generator = np.random.default_rng(7)
    made = [map_exchange_area(tmp_path / str(island), 4, VALUES, PER_CHUNK, create=True) for island in range(3)]
    row = made[0].row(ROUND)
    for area in made:
        area.sent[row] = generator.integers(-(2**28), 2**28, VALUES)
    for area in made:
        area.summed[row] = sum(other.sent[row].astype(np.int64) for other in made)
        area.bitmaps[row] = 0b111
    return made


ALL = {0: 0b111, 1: 0b111, 2: 0b111}


def test_complete_exchange_is_exact_and_mixes_evenly(areas: list[ExchangeArea]) -> None:
    check = check_round(areas, ALL, ROUND)
    assert check.exact
    np.testing.assert_allclose(check.mixing, 1 / 3)


def test_one_wrong_value_is_found(areas: list[ExchangeArea]) -> None:
    areas[1].summed[areas[1].row(ROUND), 9] += 1
    assert not check_round(areas, ALL, ROUND).exact


def test_partial_sum_is_checked_against_its_own_contributors(areas: list[ExchangeArea]) -> None:
    row = areas[2].row(ROUND)
    areas[2].bitmaps[row, 2] = 0b101
    assert not check_round(areas, ALL, ROUND).exact
    areas[2].summed[row, 8:] -= areas[1].sent[row, 8:]
    check = check_round(areas, ALL, ROUND)
    assert check.exact
    np.testing.assert_allclose(check.mixing[2], [0.8 / 3 + 0.2 / 2, 0.8 / 3, 0.8 / 3 + 0.2 / 2])


def test_contributor_from_outside_the_clique_is_not_exact(areas: list[ExchangeArea]) -> None:
    assert not check_round(areas, {**ALL, 0: 0b011}, ROUND).exact


def test_missing_own_contribution_is_not_exact(areas: list[ExchangeArea]) -> None:
    row = areas[0].row(ROUND)
    areas[0].bitmaps[row] = 0b110
    areas[0].summed[row] -= areas[0].sent[row]
    assert not check_round(areas, ALL, ROUND).exact


def test_f32_is_right_within_rounding_and_no_further(areas: list[ExchangeArea]) -> None:
    row = areas[0].row(ROUND)
    generator = np.random.default_rng(3)
    for area in areas:
        area.sent[row] = generator.standard_normal(VALUES).astype(np.float32).view(np.int32)
    floats = [area.sent[row].view(np.float32) for area in areas]
    for area, order in zip(areas, ((0, 1, 2), (2, 0, 1), (1, 2, 0)), strict=True):
        area.summed[row] = ((floats[order[0]] + floats[order[1]]) + floats[order[2]]).view(np.int32)
    assert check_round(areas, ALL, ROUND, number_format=1).exact
    wrong = areas[1].summed[row].view(np.float32)
    wrong[4] *= np.float32(1 + 1e-5)
    wrong[4] += np.float32(1e-5)
    assert not check_round(areas, ALL, ROUND, number_format=1).exact
    wrong[4] = np.nan
    assert not check_round(areas, ALL, ROUND, number_format=1).exact
