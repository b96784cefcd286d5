"""Values on the command line."""

import argparse

import pytest

from testbed.cli import build_parser
from testbed.commands.arguments import number, whole_number


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "", "1,5", "five", "-1"])
def test_number_refuses_what_is_no_finite_number_in_bounds(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a number of at least 0"):
        number(at_least=0)(text)


def test_bounds_are_inclusive_or_exclusive_as_asked() -> None:
    assert number(at_least=0)("0") == 0
    with pytest.raises(argparse.ArgumentTypeError, match="not a number above 0"):
        number(above=0)("0")
    assert number(above=0)("1e-9") == 1e-9


@pytest.mark.parametrize("text", ["0", "-3", "1.5", "nan", ""])
def test_whole_number_refuses_what_is_none_of_at_least(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a whole number of at least 1"):
        whole_number(1)(text)


def test_policy_schedule_counts_rounds_from_one_and_ascends() -> None:
    parser = build_parser()
    parsed = parser.parse_args(["run", "--policy-schedule", "4=triangles,9=pairs"])
    assert parsed.policy_schedule == ((3, "triangles"), (8, "pairs"))
    for wrong in ("1=pairs", "4", "x=pairs", "5=pairs,3=triangles", "4="):
        with pytest.raises(SystemExit):
            parser.parse_args(["run", "--policy-schedule", wrong])
