"""`testbed resume`: let a paused experiment go on."""

import argparse
from typing import Any

from testbed.commands.arguments import add_run_options
from testbed.commands.conducting import conduct


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
    return conduct(arguments, "resume", "goes on with round {}")
