"""The commands that show the policy in force and ask for another."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from testbed.errors import TestbedError
from testbed.live.conducting import whole_or_none
from testbed.live.server import Command
from testbed.run.conductor import Conductor
from testbed.run.epochs import Epochs
from testbed.run.planning import TIME_LIMIT_S
from testbed.run.swaps import Swap, Swaps


def policy_commands(swaps: Swaps, epochs: Epochs, conductor: Conductor) -> dict[str, Command]:
    """Commands by name."""

    def show(request: Mapping[str, Any]) -> dict[str, Any]:
        number = whole_or_none(request, "swap")
        if number is not None:
            return {"swap": _document(swaps.show(number))}
        epoch = epochs.current
        return {
            "policy": epoch.plan.policy,
            "memory_gb": epoch.plan.memory_gb,
            "round_time_ms": epoch.plan.round_time_ms,
            "epoch": epoch.number,
            "first_round": epochs.first_round,
            "swaps": [_document(swap) for swap in swaps.all],
        }

    def change(request: Mapping[str, Any]) -> dict[str, Any]:
        policy = request.get("policy")
        if not isinstance(policy, str) or not policy:
            raise TestbedError('policy_set wants a "policy": a name, or the absolute path of a file and a class in it')
        memory_gb = _number(request, "memory_gb", at_least=0)
        time_limit_s = _number(request, "time_limit_s", at_least=0)
        at_round = whole_or_none(request, "at_round")
        if at_round is not None and at_round > conductor.last_round:
            raise TestbedError(f"at_round: the run ends with round {conductor.last_round + 1}")
        swap = swaps.request(
            policy,
            memory_gb,
            at_round=at_round,
            time_limit_s=TIME_LIMIT_S if time_limit_s is None else time_limit_s,
        )
        return {"swap": _document(swap)}

    return {"policy_show": show, "policy_set": change}


def _document(swap: Swap) -> dict[str, Any]:
    return {name: value for name, value in asdict(swap).items() if name != "asked_ns"}


def _number(request: Mapping[str, Any], key: str, at_least: float) -> float | None:
    value = request.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < at_least:
        raise TestbedError(f"{key}: {value!r} is not a number of at least {at_least:g}")
    return float(value)
