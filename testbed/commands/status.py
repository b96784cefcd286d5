"""`testbed status`: what the running experiment is doing."""

import argparse
import json
import time
from typing import Any

from testbed.client import Client, connect, is_running
from testbed.commands.arguments import add_run_options
from testbed.errors import TestbedError

_LOOK_S = 0.2


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "status",
        help="what the running experiment is doing",
        description="Show what the running experiment is doing. Needs root.",
        epilog="example: sudo testbed status --json",
    )
    parser.add_argument("--watch", action="store_true", help="a line whenever that changes, until the run has ended")
    add_run_options(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    with connect(arguments.run) as run:
        status = run.call("status")
        if arguments.watch:
            _watch(run, status, arguments.json)
            return 0
    if arguments.json:
        print(json.dumps(status, indent=2))
        return 0
    print(f"run {status['run']}: {_describe(status)}")
    print(f"results in {status['run_dir']}")
    return 0


def _watch(run: Client, status: dict[str, Any], as_json: bool) -> None:
    while True:
        print(json.dumps(status) if as_json else _describe(status), flush=True)
        before = status
        while status == before:
            time.sleep(_LOOK_S)
            try:
                status = run.call("status")
            except TestbedError:
                if is_running(run.run_id):
                    raise
                return


def _describe(status: dict[str, Any]) -> str:
    text = f"{status['policy']} on {status['topology']}, {status['state']}"
    if status["round"] is not None:
        text += f", round {status['round'] + 1} of {status['last_round'] + 1}, epoch {status['epoch']}"
    last = status["last"]
    if last is not None:
        right = "exact" if last["exact"] else "SUMS WRONG"
        equal = "digests equal" if last["digests_equal"] else "DIGESTS DIFFER"
        text += (
            f"; round {last['round'] + 1}: ratio {last['ratio']:.3f}, {last['delivered']} of {last['expected']} "
            f"contributions, {right}, {equal}"
        )
    return text
