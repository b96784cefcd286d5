"""Values on the command line."""

import argparse
import re
from pathlib import Path

import pytest

from testbed.cli import build_parser
from testbed.commands.arguments import HelpFormatter, number, whole_number
from testbed.commands.policy_schedule import policy_schedule
from testbed.run.settings import PolicyChange


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
    assert parsed.policy_schedule == (PolicyChange("triangles", round=3), PolicyChange("pairs", round=8))
    for wrong in ("1=pairs", "4", "x=pairs", "5=pairs,3=triangles", "4="):
        with pytest.raises(SystemExit):
            parser.parse_args(["run", "--policy-schedule", wrong])


def test_policy_schedule_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "schedule.toml"
    path.write_text(
        """
        [[change]]
        round = 4
        policy = "triangles"
        memory_gb = 0

        [[change]]
        at = "2min"
        policy = "mine.py:Mine"
        """,
        encoding="utf-8",
    )
    parsed = build_parser().parse_args(["run", "--policy-schedule", str(path)])
    assert parsed.policy_schedule == (
        PolicyChange("triangles", round=3, memory_gb=0),
        PolicyChange(f"{tmp_path}/mine.py:Mine", at_ms=120_000),
    )


BAD_SCHEDULES = {
    "": "[[change]] tables",
    "[[change": "schedule.toml",
    "changes = 3": "[[change]] tables",
    "[[change]]\nround = 3": "change 1: policy",
    "[[change]]\npolicy = 'pairs'": "change 1: write either",
    "[[change]]\npolicy = 'pairs'\nround = 3\nat = '1s'": "change 1: write either",
    "[[change]]\npolicy = 'pairs'\nround = 1": "change 1: round: 1",
    "[[change]]\npolicy = 'pairs'\nat = 10": "change 1: at: 10",
    "[[change]]\npolicy = 'pairs'\nround = 3\nmemory_gb = '8'": "change 1: memory_gb",
    "[[change]]\npolicy = 'pairs'\nround = 3\ntrees = 'optimised'": "change 1: unknown key 'trees'",
    "[[change]]\npolicy = 'pairs'\nround = 3\n[[change]]\npolicy = 'pairs'\nround = 2": "must ascend",
}


@pytest.mark.parametrize("text", BAD_SCHEDULES)
def test_wrong_schedule_files_are_refused_by_change_and_key(text: str, tmp_path: Path) -> None:
    path = tmp_path / "schedule.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        policy_schedule(str(path))
    assert BAD_SCHEDULES[text] in str(caught.value)
    assert str(path) in str(caught.value)


def test_help_names_defaults_where_there_are_any() -> None:
    parser = argparse.ArgumentParser(formatter_class=HelpFormatter)
    for option, default in (("--none", None), ("--empty", ()), ("--zero", 0.0), ("--word", "auto")):
        parser.add_argument(option, default=default, help="meaning")
    parser.add_argument("--switch", action="store_true", help="meaning")
    parser.add_argument("--told", default=3, help="meaning (default: three)")
    help_text = re.sub(r"\s+", " ", parser.format_help())
    assert re.findall(r"\(default: [^)]*\)", help_text) == ["(default: 0.0)", "(default: auto)", "(default: three)"]
