"""`testbed exec`: run a command on a node of the running network."""

import argparse
import os
from typing import Any

from testbed.errors import TestbedError
from testbed.run.state import living_runs


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "exec",
        help="run a command on a node of the running network",
        description="Run a command on a node of a running experiment: in the node's network namespace, and with a "
        "router's own files, so that vtysh finds its daemons. Its exit code is the command's. Needs root.",
        epilog="example: sudo testbed exec nyc vtysh -c 'show ip mroute'",
    )
    parser.add_argument("--run", metavar="ID", help="the run, when there are several")
    parser.add_argument("node", metavar="NODE", help="nyc is a router, nyc-e an edge, nyc-h1 a host")
    parser.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="the command and its arguments")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        raise TestbedError("exec needs root; use sudo testbed exec")
    if not arguments.command:
        raise TestbedError("exec: a command is missing after the node; for example: testbed exec nyc ip route")
    pid = _node(arguments.run, arguments.node)
    enter = ["nsenter", f"--net=/proc/{pid}/ns/net", f"--mount=/proc/{pid}/ns/mnt", f"--wd={os.getcwd()}", "--"]
    try:
        os.execvp(enter[0], [*enter, *arguments.command])
    except OSError as error:
        raise TestbedError(f"exec: nsenter cannot be run: {error.strerror}; install the package util-linux") from error


def _node(run_id: str | None, node: str) -> int:
    """A process in the node's namespaces. Raises TestbedError."""
    runs = living_runs()
    if not runs:
        raise TestbedError("exec: no experiment is running; start one with testbed run")
    if run_id is None and len(runs) > 1:
        raise TestbedError(f"exec: several experiments are running; choose one with --run: {', '.join(runs)}")
    chosen = run_id or next(iter(runs))
    if chosen not in runs:
        raise TestbedError(f"exec: no run {chosen} is running; running: {', '.join(runs)}")
    if not runs[chosen]:
        raise TestbedError(f"exec: run {chosen} has not built its network yet; try again in a moment")
    if node not in runs[chosen]:
        raise TestbedError(f"exec: there is no node {node}; there are {', '.join(runs[chosen])}")
    return runs[chosen][node]
