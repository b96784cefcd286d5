"""Policies by name: built in, from an installed package, or from a file.

A package offers one through the entry-point group `testbed.policies`; a file is named as `path/file.py:Name`. Either
names a class without arguments, or a function of the problem, as docs/scheduler.md shows.
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from agents.plugin_file import load_from_file, split_name
from scheduler.errors import PolicyError
from scheduler.policies.interface import Policy, Schedule
from scheduler.policies.named import NAMED
from scheduler.problem import Problem

GROUP = "testbed.policies"
COMPARED = ("all-to-all", "triangles", "pairs", "regional")
"""What `--policy all` plans."""


class _Function:
    """A policy that is a plain function of the problem; it may return rounds or a Schedule."""

    def __init__(self, name: str, function: Callable[[Problem], Any]) -> None:
        self.name = name
        self._function = function

    def schedule(self, problem: Problem) -> Schedule:
        answer = self._function(problem)
        if isinstance(answer, Schedule):
            return answer
        try:
            return Schedule(tuple(tuple(tuple(clique) for clique in cliques) for cliques in answer))
        except TypeError:
            raise PolicyError(f"policy {self.name} returned {type(answer).__name__}, not rounds of cliques") from None


def known_policies() -> dict[str, str]:
    """The names of the policies that are built in or installed, each with a line about it."""
    about = {name: _first_line(make) for name, make in NAMED.items()}
    for point in entry_points(group=GROUP):
        if point.name not in about:
            try:
                about[point.name] = _first_line(point.load())
            except (ImportError, AttributeError) as error:
                about[point.name] = f"cannot be loaded: {error}"
    return about


def _first_line(thing: Any) -> str:
    return next(iter((thing.__doc__ or "").strip().splitlines()), "")


def find_policy(name: str) -> Policy:
    """The policy of this name. Raises PolicyError naming the known ones, or what is wrong with the file."""
    if name in NAMED:
        return NAMED[name]()
    file = split_name(name)
    if file is not None:
        return _made(name, _from_file(*file))
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if name in installed:
        try:
            return _made(name, installed[name].load())
        except (ImportError, AttributeError) as error:
            raise PolicyError(f"policy {name}: its package cannot be loaded: {error}") from None
    known = ", ".join([*NAMED, *(other for other in installed if other not in NAMED)])
    raise PolicyError(f"unknown policy {name!r}: one of {known}, or path/file.py:Name")


def _from_file(path: Path, attribute: str) -> Any:
    try:
        return load_from_file(path, attribute)
    except ValueError as error:
        raise PolicyError(f"policy {error}") from None


def _made(name: str, thing: Any) -> Policy:
    policy = thing() if isinstance(thing, type) else thing
    if not hasattr(policy, "schedule"):
        if not callable(policy):
            raise PolicyError(f"policy {name}: it is neither a class with a schedule method nor a function")
        return _Function(name, policy)
    if not isinstance(getattr(policy, "name", None), str):
        raise PolicyError(f"policy {name}: its class needs a name")
    found: Policy = policy
    return found
