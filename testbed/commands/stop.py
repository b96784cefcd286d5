"""`testbed stop`: have the running experiment end early, with its results."""

import argparse
from typing import Any

from testbed.commands.arguments import add_run_options, whole_number
from testbed.commands.conducting import conduct


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "stop",
        help="end the running experiment after a round, with its results",
        description="Have the running experiment end after the round that is under way, or a later one: it measures "
        "the models, sums up the rounds so far and cleans up, as after its last round. Needs root.",
        epilog="example: sudo testbed stop --after-round 50",
    )
    parser.add_argument("--after-round", type=whole_number(1), metavar="N", help="a later round, counted from 1")
    add_run_options(parser)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    after_round = None if arguments.after_round is None else arguments.after_round - 1
    return conduct(arguments, "stop", "ends after round {}", after_round=after_round)
