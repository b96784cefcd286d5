"""`testbed events`: what happened in the running experiment, as JSON lines."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from testbed.client import connect, is_running
from testbed.commands.arguments import whole_number
from testbed.live.protocol import EVENTS

_LOOK_S = 0.1


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "events",
        help="what happened in the running experiment, as JSON lines",
        description="Print the events of the running experiment, one JSON object a line, as they are in its "
        "events.jsonl (docs/control.md). Needs root.",
        epilog="example: sudo testbed events --follow | jq -c 'select(.event == \"policy_swap\")'",
    )
    parser.add_argument("--follow", action="store_true", help="go on with what happens, until the run has ended")
    parser.add_argument("--last", type=whole_number(0), metavar="N", help="of what has happened, only the last N")
    parser.add_argument("--run", metavar="ID", help="which run, when there are several")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    with connect(arguments.run) as run:
        path = Path(run.call("status")["run_dir"]) / EVENTS
    while arguments.follow and not path.exists() and is_running(run.run_id):
        time.sleep(_LOOK_S)  # it is still planning
    if not path.exists():
        return 0
    with path.open(encoding="utf-8") as file:
        past = file.readlines()
        for line in past if arguments.last is None else past[len(past) - min(arguments.last, len(past)) :]:
            sys.stdout.write(line)
        sys.stdout.flush()
        going_on = arguments.follow
        while going_on:
            # Looked at first: what a run writes before it ends is then read below.
            going_on = is_running(run.run_id)
            for line in file:
                sys.stdout.write(line)
            sys.stdout.flush()
            if going_on:
                time.sleep(_LOOK_S)
    return 0
