"""`testbed status`: what the running experiment is doing."""

import argparse
import json
from typing import Any

from testbed.client import connect


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "status",
        help="what the running experiment is doing",
        description="Show what the running experiment is doing. Needs root.",
        epilog="example: sudo testbed status --json",
    )
    parser.add_argument("--run", metavar="ID", help="which run, when there are several")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    with connect(arguments.run) as run:
        status = run.call("status")
    if arguments.json:
        print(json.dumps(status, indent=2))
        return 0
    place = "" if status["round"] is None else f", round {status['round'] + 1} of {status['rounds']}"
    print(f"run {status['run']}: {status['policy']} on {status['topology']}, {status['state']}{place}")
    print(f"results in {status['run_dir']}")
    return 0
