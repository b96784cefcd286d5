"""`testbed paper`: the published comparison."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from testbed.commands.arguments import HelpFormatter, number, whole_number
from testbed.paper.command import compare
from testbed.paper.outcome import Attempt
from testbed.paper.record import Record
from testbed.paper.row import Value
from testbed.run.settings import RunSettings
from testbed.scale import Scale

_WIDTH = 132


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "paper",
        help="the published comparison, planned and measured",
        description="Plan and run the published schedules on nine-city, the 2×2 of multicast and aggregation, ring "
        "all-reduce, overlapped training, and the best schedules that the search finds; print published, planned and "
        "measured side by side. Needs root, and about ten minutes, or twenty with --training. "
        "Exit code 1 if a measured round time is more than 5 % off, or a lifetime more than 1 %.",
        epilog="example: sudo testbed paper --json > paper.json",
        formatter_class=HelpFormatter,
    )
    defaults = RunSettings()
    option = parser.add_argument
    option("--training", action="store_true", help="train as well, on digits and characters: loss curves")
    option("--plot", type=Path, metavar="FILE", help="with --training: draw the curves to this file")
    option("--links", default=defaults.links, metavar="KIND", help="how links are emulated: auto, netem or delayline")
    option("--rate-scale", type=number(above=0), default=Scale().rate_scale, help="factor on rates and payload")
    option("--time-dilation", type=number(at_least=1), default=Scale().time_dilation, help="factor on all times")
    option("--seed", type=whole_number(0), default=defaults.seed, help="seed of everything random")
    option("--out", type=Path, metavar="DIR", help="where the runs go (default: runs/<UTC time>-paper)")
    option("--json", action="store_true", help="print one JSON document instead of the table")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    record = compare(arguments, progress)
    document = record.document()
    if arguments.json:
        print(json.dumps(document, indent=2))
    else:
        # In a file or a pipe, whose width nobody knows, lines that say what they are about.
        width = None if sys.stdout.isatty() else _WIDTH
        _print(Console(highlight=False, soft_wrap=True, width=width), record, document)
    return 0 if record.ok else 1


def _print(console: Console, record: Record, document: Mapping[str, Any]) -> None:
    table = Table(title="published, planned and measured (f: fitted, !: not within bounds)", title_justify="left")
    table.add_column("quantity")
    for heading in ("published", "planned", "measured", "deviation"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in record.rows:
        deviation = row.deviation
        table.add_row(
            row.quantity,
            _text(row.published) + (" f" if row.fitted and row.published is not None else ""),
            _text(row.planned),
            _text(row.measured),
            ("" if deviation is None else f"{deviation:+.1%}") + ("" if row.ok else " !"),
        )
    console.print(table)
    for key, outcome in record.outcomes.items():
        if len(outcome.attempts) > 1:
            told = "; ".join(_attempt(attempt) for attempt in outcome.attempts)
            console.print(f"{key}: done {len(outcome.attempts)} times: {told}")
    for what, trouble in document["not_run"].items():
        console.print(f"{'FAILED: ' if what in record.failures else ''}{what}: {trouble}")
    for statement in document["statements"]:
        console.print(statement)
    console.print(f"results in {document['run_dir']}")


def _attempt(attempt: Attempt) -> str:
    what = attempt.trouble or f"{attempt.deviation or 0.0:.1%} off"
    if attempt.untrusted_rounds:
        what += f", {attempt.untrusted_rounds} of {attempt.rounds} rounds not trustworthy"
    return f"time dilation {attempt.time_dilation:g}: {what}"


def _text(value: Value) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"
