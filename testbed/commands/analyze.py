"""`testbed analyze`: loss and recovery, from captures."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from testbed.commands.arguments import whole_number

if TYPE_CHECKING:
    from testbed.analyze.explain import Wanted
    from testbed.analyze.results import Analysis


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "analyze",
        help="explain loss and recovery from captures",
        description="Account for every packet in captures: where each was lost, what was repaired, and how fast. "
        "Reads pcapng and pcap; needs no root. Exit code 1: captures are incomplete, or packets unexplained.",
        epilog="example: testbed analyze runs/20261129T204500-all-to-all",
    )
    parser.add_argument("paths", type=Path, nargs="+", metavar="RUN|FILE", help="a run directory, or capture files")
    parser.add_argument("--recording", type=whole_number(1), metavar="N", help="which recording of the run, if several")
    parser.add_argument("--csv", type=Path, metavar="DIR", help="write streams, hops, lost packets and repairs as CSV")
    parser.add_argument(
        "--explain",
        metavar="SOURCE/ROUND/CHUNK",
        help="tell the life of one contribution instead, for example nyc/3/17, numbers as in the packets and lost.csv",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw repair latency, loss over time, and the packet of --explain or else the first one that was lost",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the tables")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    # Reading captures takes what other commands do not need.
    from testbed.analyze.analysis import analyse  # noqa: PLC0415
    from testbed.analyze.captures import Captures, find_captures  # noqa: PLC0415
    from testbed.analyze.explain import explain, narrate, parse_wanted  # noqa: PLC0415
    from testbed.analyze.report import print_report, to_json, write_csv  # noqa: PLC0415

    wanted = None if arguments.explain is None else parse_wanted(arguments.explain)
    paths = find_captures(arguments.paths, arguments.recording)
    console = Console(highlight=False, soft_wrap=True)
    captures = Captures(paths)
    sights = [] if wanted is None else explain(captures, wanted)
    if wanted is not None:
        lines = narrate(captures, wanted, sights)
        print(json.dumps({"explained": lines}, indent=2) if arguments.json else "\n".join(lines))
        if arguments.plot is None and arguments.csv is None:
            return 0
    analysis = analyse(captures)
    if arguments.csv is not None:
        write_csv(analysis, arguments.csv)
    if arguments.plot is not None:
        from testbed.plots.recovery import plot_recovery  # noqa: PLC0415 (drawing is slow to load)

        drawn = wanted or _worth_drawing(analysis)
        if wanted is None and drawn is not None:
            sights = explain(captures, drawn)
        plot_recovery(analysis, captures, "" if drawn is None else _title(drawn, analysis), sights, arguments.plot)
    if wanted is not None:
        return 0
    if arguments.json:
        print(json.dumps(to_json(analysis), indent=2))
    else:
        print_report(console, analysis)
    return 0 if analysis.reconciled and analysis.complete else 1


def _title(wanted: "Wanted", analysis: "Analysis") -> str:
    named = wanted.source.isdigit() and analysis.islands.get(int(wanted.source))
    return str(replace(wanted, source=named) if named else wanted)


def _worth_drawing(analysis: "Analysis") -> "Wanted | None":
    """A packet that was lost, on a last hop if there were NACKs; else one that was fetched: its edge has lost it."""
    from testbed.analyze.explain import Wanted  # noqa: PLC0415

    kinds = ["result", "contribution"] if analysis.nacks else ["contribution", "result"]
    lost = sorted((packet for packet in analysis.lost if packet.kind in kinds), key=lambda each: kinds.index(each.kind))
    for packet in lost:
        if packet.bitmap and packet.round is not None and packet.chunk is not None:
            contributor = (packet.bitmap & -packet.bitmap).bit_length() - 1
            return Wanted(str(contributor), packet.round, packet.chunk, packet.shard or 0)
    if analysis.first_fetched is None:
        return None
    source, *place = analysis.first_fetched
    return Wanted(str(source), *place)
