"""`testbed resume`: let a paused experiment go on."""

import argparse
import json
from typing import Any

from testbed.client import connect
from testbed.commands.arguments import add_run_options


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "resume",
        help="go on after testbed pause",
        description="Let a paused experiment go on with its next round. Needs root.",
        epilog="example: sudo testbed resume",
    )
    add_run_options(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    with connect(arguments.run) as run:
        answer = run.call("resume")
    if arguments.json:
        print(json.dumps(answer, indent=2))
    else:
        print(f"run {run.run_id}: goes on with round {answer['next_round'] + 1}")
    return 0
