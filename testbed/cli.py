"""The command line: parsing, errors of one line, exit codes. Each subcommand is a module of testbed.commands."""

import argparse
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import NoReturn

from scheduler.errors import SchedulerError, SolverError
from testbed.errors import RunFailed, TestbedError
from testbed.links.interface import LinkError
from testbed.multicast.interface import MulticastError

EXIT_DONE, EXIT_CHECK_FAILED, EXIT_REFUSED, EXIT_INTERRUPTED = 0, 1, 2, 130

_COMMANDS = (
    *("run", "plan", "status", "events", "policy", "link", "pause", "resume", "stop"),
    *("exec", "capture", "analyze", "verify", "topology", "baseline", "paper", "dissector", "clean"),
)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_REFUSED, f"{self.prog}: {message}; see {self.prog} --help\n")


def build_parser(commands: Sequence[str] = _COMMANDS) -> argparse.ArgumentParser:
    """The parser of these commands; each is a module that takes a while to load."""
    parser = _Parser(
        prog="testbed",
        description="A network-emulation testbed for training large models across sites.",
        epilog="example: sudo testbed run --policy triangles --memory-gb 0 --rounds 10",
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for command in commands:
        import_module(f"testbed.commands.{command}").add_parser(subparsers)
    return parser


def run_command_line() -> int:
    """Run `testbed` with the process's arguments; returns the exit code."""
    # The one that is named, so that a look at a busy run costs little; all of them for help and for errors.
    named = [word for word in sys.argv[1:] if not word.startswith("-")][:1]
    arguments = build_parser(named if named and named[0] in _COMMANDS else _COMMANDS).parse_args()
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
