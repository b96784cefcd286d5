"""`testbed capture`: begin and end a recording of frames of the running experiment."""

import argparse
import json
from typing import Any

from testbed.client import connect
from testbed.commands.arguments import add_capture_bytes, add_run_options


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "capture",
        help="record frames of the running experiment",
        description="Begin and end a recording of frames of the running experiment. It goes into the run's directory, "
        "as with run --capture; testbed analyze explains it. Needs root.",
        epilog="example: sudo testbed capture start core, and later: sudo testbed capture stop",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    starting = actions.add_parser(
        "start", help="begin a recording", epilog="example: sudo testbed capture start nyc:nyc-lon lon:nyc-lon"
    )
    starting.add_argument(
        "points", nargs="+", metavar="WHERE", help="all, core, access, or NODE:LINK for one end of a link"
    )
    add_capture_bytes(starting)
    starting.set_defaults(execute=_start)
    stopping = actions.add_parser("stop", help="end it", epilog="example: sudo testbed capture stop")
    stopping.set_defaults(execute=_stop)
    for action in (starting, stopping):
        add_run_options(action)


def _start(arguments: argparse.Namespace) -> int:
    with connect(arguments.run) as run:
        answer = run.call("capture_start", points=arguments.points, capture_bytes=arguments.capture_bytes)
    _print(arguments, answer, f"recording {answer['recording']}: {len(answer['points'])} interfaces")
    return 0


def _stop(arguments: argparse.Namespace) -> int:
    with connect(arguments.run) as run:
        answer = run.call("capture_stop")
    lost = f", and {answer['lost']} more that it lost" if answer["lost"] else ""
    files = f"{len(answer['files'])} files in {answer['directory']}"
    _print(arguments, answer, f"recording {answer['recording']}: {answer['frames']} frames{lost}, {files}")
    return 1 if answer["lost"] else 0


def _print(arguments: argparse.Namespace, answer: dict[str, Any], text: str) -> None:
    print(json.dumps(answer, indent=2) if arguments.json else text)
