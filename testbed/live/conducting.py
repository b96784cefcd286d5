"""The commands that say whether another round follows: pause, resume, stop."""

from collections.abc import Callable, Mapping
from typing import Any

from testbed.errors import TestbedError
from testbed.live.server import Command
from testbed.run.conductor import Conductor

Tell = Callable[[str, int], None]
"""Told of the command and of the round that it names."""


def conducting_commands(conductor: Conductor, tell: Tell) -> dict[str, Command]:
    """Commands by name; `tell` records what was done."""

    def pause(_request: Mapping[str, Any]) -> dict[str, Any]:
        after_round = conductor.pause()
        tell("pause", after_round)
        return {"after_round": after_round}

    def resume(_request: Mapping[str, Any]) -> dict[str, Any]:
        next_round = conductor.resume()
        tell("resume", next_round)
        return {"next_round": next_round}

    def stop(request: Mapping[str, Any]) -> dict[str, Any]:
        after_round = conductor.stop(whole_or_none(request, "after_round"))
        tell("stop", after_round)
        return {"after_round": after_round}

    return {"pause": pause, "resume": resume, "stop": stop}


def whole_or_none(request: Mapping[str, Any], key: str) -> int | None:
    """A field that is a whole number, or not there. Raises TestbedError for anything else."""
    value = request.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise TestbedError(f"{key}: {value!r} is not a whole number of at least 0")
    return value
