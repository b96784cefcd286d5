"""`testbed clean`: remove what killed runs left, and only that."""

import argparse
import os
from typing import Any

from testbed.errors import TestbedError
from testbed.run.state import abandoned_runs, release_run


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "clean",
        help="remove what earlier runs left",
        description="End the processes and remove the files of runs whose main process is gone. Runs that are alive, "
        "and everything that is not a run's, are left alone. Needs root.",
        epilog="example: sudo testbed clean",
    )
    parser.set_defaults(execute=execute)


def execute(_arguments: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        raise TestbedError("clean needs root; use sudo testbed clean")
    runs = abandoned_runs()
    for run_id in runs:
        ended = release_run(run_id)
        print(f"run {run_id}: {ended} processes ended, files removed")
    if not runs:
        print("nothing to clean")
    return 0
