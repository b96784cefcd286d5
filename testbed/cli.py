"""The command line: parsing, errors of one line, exit codes. Each subcommand is a module of testbed.commands."""

import argparse
import signal
import sys
from types import FrameType
from typing import NoReturn

from scheduler.errors import SchedulerError, SolverError
from testbed.commands import (
    analyze,
    baseline,
    capture,
    clean,
    dissector,
    link,
    paper,
    plan,
    run,
    status,
    topology,
    verify,
)
from testbed.commands import exec as exec_command
from testbed.errors import RunFailed, TestbedError
from testbed.links.interface import LinkError
from testbed.multicast.interface import MulticastError

EXIT_DONE, EXIT_CHECK_FAILED, EXIT_REFUSED, EXIT_INTERRUPTED = 0, 1, 2, 130

_COMMANDS = (
    run,
    plan,
    status,
    link,
    exec_command,
    verify,
    topology,
    capture,
    analyze,
    baseline,
    paper,
    dissector,
    clean,
)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_REFUSED, f"{self.prog}: {message}; see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="testbed",
        description="A network-emulation testbed for training large models across sites.",
        epilog="example: sudo testbed run --policy triangles --memory-gb 0 --rounds 10",
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


def run_command_line() -> int:
    """Run `testbed` with the process's arguments; returns the exit code."""
    arguments = build_parser().parse_args()
    # A request to end is the same as Ctrl-C: everything is cleaned up on the way out.
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        code: int = arguments.execute(arguments)
    except KeyboardInterrupt:
        print("testbed: interrupted; everything was cleaned up", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (TestbedError, SchedulerError, SolverError, LinkError, MulticastError, RunFailed) as error:
        if arguments.debug:
            raise
        print(f"testbed: {error}", file=sys.stderr)
        return EXIT_CHECK_FAILED if isinstance(error, RunFailed) else EXIT_REFUSED
    except BrokenPipeError:
        # The reader of our output has seen enough.
        sys.stderr.close()
        return EXIT_CHECK_FAILED
    return code


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
