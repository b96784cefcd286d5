"""`testbed policy`: list policies; show and change that of the running experiment."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from testbed.client import Client, connect
from testbed.commands.arguments import add_run_options, number, whole_number
from testbed.errors import TestbedError

_LOOK_S = 0.05
_OVER = {"in force", "failed"}


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "policy",
        help="list policies; show and change that of the running experiment",
        description="List the policies that there are; show that of the running experiment, and go over to another "
        "without losing anything.",
        epilog="example: sudo testbed policy set triangles --memory-gb 0",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="the policies that there are", epilog="example: testbed policy list")
    listing.add_argument("--json", action="store_true", help="print one JSON document")
    listing.set_defaults(execute=_list)
    showing = actions.add_parser(
        "show", help="the policy in force, and all swaps so far", epilog="example: sudo testbed policy show"
    )
    add_run_options(showing)
    showing.set_defaults(execute=_show)
    setting = actions.add_parser(
        "set",
        help="go over to another policy",
        description="Plan another policy beside the rounds, install and prove its multicast trees, and go over to it "
        "at the next boundary of rounds; returns when it is in force. If it cannot be, the policy before goes on, and "
        "the reason is given. A file is read again each time. Needs root.",
        epilog="example: sudo testbed policy set mine.py:Mine --at-round 40",
    )
    setting.add_argument("policy", metavar="NAME|FILE:Class", help="a policy by name, or path/file.py:Name")
    setting.add_argument(
        "--memory-gb", type=number(at_least=0), help="memory that it may count on (default: that of the run)"
    )
    setting.add_argument("--at-round", type=whole_number(1), metavar="N", help="take over at this round, from 1")
    setting.add_argument("--time-limit-s", type=number(above=0), help="how long planning may take (default: 120)")
    setting.add_argument("--no-wait", action="store_true", help="return at once; testbed policy show tells the rest")
    add_run_options(setting)
    setting.set_defaults(execute=_set)


def _list(arguments: argparse.Namespace) -> int:
    from testbed.policies import known_policies  # noqa: PLC0415 - the scheduler is slow to load

    policies = known_policies()
    if arguments.json:
        print(json.dumps({"policies": [{"name": name, "about": about} for name, about in policies.items()]}, indent=2))
        return 0
    longest = max(len(name) for name in policies)
    for name, about in policies.items():
        print(f"{name:<{longest}}  {about}")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    with connect(arguments.run) as run:
        answer = run.call("policy_show")
    if arguments.json:
        print(json.dumps(answer, indent=2))
        return 0
    print(
        f"{answer['policy']} with {answer['memory_gb']:g} GB, T = {answer['round_time_ms']:.1f} ms: "
        f"epoch {answer['epoch']}, from round {answer['first_round'] + 1} on"
    )
    for swap in answer["swaps"]:
        print(_describe(swap))
    return 0


def _set(arguments: argparse.Namespace) -> int:
    policy = arguments.policy
    file, separator, name = policy.rpartition(":")
    if separator and file.endswith(".py"):
        policy = f"{Path(file).absolute()}:{name}"  # the run has another working directory
    with connect(arguments.run) as run:
        at_round = None if arguments.at_round is None else arguments.at_round - 1
        swap = run.call(
            "policy_set",
            policy=policy,
            memory_gb=arguments.memory_gb,
            at_round=at_round,
            time_limit_s=arguments.time_limit_s,
        )["swap"]
        if not arguments.no_wait:
            swap = _wait(run, swap["number"])
    if swap["state"] == "failed":
        raise TestbedError(f"policy set: {swap['error']}; the policy before goes on")
    print(json.dumps(swap, indent=2) if arguments.json else _describe(swap))
    return 0


def _wait(run: Client, swap_number: int) -> dict[str, Any]:
    """Until the swap is over."""
    while True:
        swap: dict[str, Any] = run.call("policy_show", swap=swap_number)["swap"]
        if swap["state"] in _OVER:
            return swap
        time.sleep(_LOOK_S)


def _describe(swap: dict[str, Any]) -> str:
    what = f"swap {swap['number'] + 1} to {swap['policy']} ({swap['cause']}): {swap['state']}"
    if swap["state"] == "failed":
        return f"{what}: {swap['error']}"
    if swap["first_round"] is not None:
        what += f" from round {swap['first_round'] + 1} on"
    elif swap["at_round"] is not None:
        what += f" for round {swap['at_round'] + 1}"
    if swap["asked_in_round"] is not None:
        what += f", asked for in round {swap['asked_in_round'] + 1}"
    if swap["round_time_ms"] is not None:
        what += f", T = {swap['round_time_ms']:.1f} ms"
    steps = ", ".join(f"{step} {milliseconds:.0f} ms" for step, milliseconds in swap["steps_ms"].items())
    return f"{what} ({steps})" if steps else what
