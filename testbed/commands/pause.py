"""`testbed pause`: let the running experiment stand still between two rounds."""

import argparse
from typing import Any

from testbed.commands.arguments import add_run_options
from testbed.commands.conducting import conduct


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "pause",
        help="start no further round of the running experiment, for now",
        description="Have the running experiment stand still after the round that is under way. Links can be changed "
        "and policies swapped meanwhile; a scenario's clock goes on. Needs root.",
        epilog="example: sudo testbed pause",
    )
    add_run_options(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    return conduct(arguments, "pause", "pauses after round {}; go on with testbed resume")
