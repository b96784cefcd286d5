"""The option `--policy-schedule`: which policies take over, and when; in the option itself, or in a TOML file."""

import argparse
import tomllib
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.live.scenario import parse_time_ms
from testbed.run.settings import PolicyChange

_KEYS = {"policy", "round", "at", "memory_gb"}


def policy_schedule(text: str) -> tuple[PolicyChange, ...]:
    """`6=triangles,11=pairs`, or a file of [[change]] tables. Raises ArgumentTypeError."""
    if "=" in text:
        return _in_short(text)
    path = Path(text)
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither ROUND=POLICY,… nor a file that can be read: {error.strerror}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{path}: {error}") from error
    tables = content.pop("change", None)
    if content or not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise argparse.ArgumentTypeError(f"{path}: a schedule has [[change]] tables, at least one, and nothing else")
    changes = []
    for number, table in enumerate(tables, start=1):
        try:
            changes.append(_change(table, path.parent))
        except TestbedError as error:
            raise argparse.ArgumentTypeError(f"{path}: change {number}: {error}") from error
    _check_rounds([change.round for change in changes if change.round is not None], text)
    return tuple(changes)


def _in_short(text: str) -> tuple[PolicyChange, ...]:
    changes = []
    for part in text.split(","):
        number, _, policy = part.partition("=")
        if not (number.isascii() and number.isdigit() and int(number) > 1 and policy):
            raise argparse.ArgumentTypeError(f"{part!r} is not ROUND=POLICY with a round of at least 2")
        changes.append(PolicyChange(policy, round=int(number) - 1))
    _check_rounds([change.round for change in changes if change.round is not None], text)
    return tuple(changes)


def _check_rounds(rounds: list[int], text: str) -> None:
    if rounds != sorted(set(rounds)):
        raise argparse.ArgumentTypeError(f"{text!r}: the rounds must ascend")


def _change(table: dict[str, Any], directory: Path) -> PolicyChange:
    """Raises TestbedError that names the key."""
    unknown = table.keys() - _KEYS
    if unknown:
        raise TestbedError(f"unknown key {min(unknown)!r}; there are {', '.join(sorted(_KEYS))}")
    policy, number, at, memory_gb = (table.get(key) for key in ("policy", "round", "at", "memory_gb"))
    if not isinstance(policy, str) or not policy:
        raise TestbedError(f"policy: {policy!r} is no policy; write a name, or a file and a class as file.py:Class")
    if (number is None) == (at is None):
        raise TestbedError('write either round = N or at = "10s"')
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 2):
        raise TestbedError(f"round: {number!r} is not a whole number of at least 2")
    if memory_gb is not None and (not isinstance(memory_gb, int | float) or isinstance(memory_gb, bool)):
        raise TestbedError(f"memory_gb: {memory_gb!r} is not a number")
    file, separator, name = policy.rpartition(":")
    if separator and file.endswith(".py"):
        policy = f"{(directory / file).absolute()}:{name}"
    return PolicyChange(
        policy,
        round=None if number is None else number - 1,
        at_ms=None if at is None else parse_time_ms(at),
        memory_gb=None if memory_gb is None else float(memory_gb),
    )
