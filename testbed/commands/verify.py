"""`testbed verify`: are the links what was asked?"""

import argparse
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from testbed.commands.arguments import HelpFormatter, add_network_options
from testbed.scale import Scale
from testbed.verify.command import verify_network
from testbed.verify.judging import Finding

_TABLE_WIDTH = 150  # a cut number would be a wrong one: rather let a terminal wrap


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "verify",
        help="measure every link against what was asked",
        description="Build the network, without any agents, and measure every direction of every link: one-way delay, "
        "rate at saturation, loss and order at light load. Exit code 1 if one is not what was asked: delay within "
        "0.2 ms or 1 %, rate within 2 %, loss within what chance allows. Needs root.",
        epilog="example: sudo testbed verify --topology nine-city",
        formatter_class=HelpFormatter,
    )
    add_network_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    scale = Scale(arguments.rate_scale, arguments.time_dilation)
    progress = Console(stderr=arguments.json, highlight=False, soft_wrap=True)
    verified = verify_network(
        arguments.topology, arguments.links, scale, arguments.seed, arguments.link_settings, progress
    )
    ok = all(finding.ok for finding in verified.findings)
    if arguments.json:
        document = {
            "topology": verified.topology,
            "links_kind": verified.links_kind,
            "links": [finding.to_json() for finding in verified.findings],
            "ok": ok,
            "warnings": list(verified.warnings),
        }
        print(json.dumps(document, indent=2))
    else:
        _print(Console(highlight=False, width=max(progress.width, _TABLE_WIDTH)), verified.findings)
        for warning in verified.warnings:
            print(f"warning: {warning}")
        print("every link is what was asked" if ok else "NOT every link is what was asked")
    return 0 if ok else 1


def _print(console: Console, findings: tuple[Finding, ...]) -> None:
    table = Table(box=None, pad_edge=False)
    headings = ("delay asked, ms", "min", "median", "p99", "error", "Gbit/s asked", "measured", "error")
    for heading in ("link", *headings, "loss asked", "lost", "overtaken", ""):
        table.add_column(heading, justify="left" if heading in ("link", "") else "right", no_wrap=True)
    for finding in findings:
        asked, measured = finding.asked, finding.measured
        delay, rate = measured["one_way_delay_ms"], measured["rate_gbps"]
        delays = [f"{delay[name]:.3f}" for name in ("min", "median", "p99")] if delay else ["–"] * 3
        table.add_row(
            finding.link,
            f"{asked['one_way_delay_ms']:.2f}",
            *delays,
            f"{delay['median'] - asked['one_way_delay_ms']:+.3f}" if delay else "–",
            f"{asked['rate_gbps']:.4g}",
            f"{rate:.4g}" if rate else "–",
            f"{rate / asked['rate_gbps'] - 1:+.2%}" if rate else "–",
            f"{asked['loss']:.2%}",
            f"{measured['lost']} of {measured['probes']}",
            str(measured["reordered"]),
            "ok" if finding.ok else "WRONG",
        )
    console.print(table)
    for finding in findings:
        for text in (*finding.wrong, *finding.notes):
            console.print(f"{finding.link}: {text}", soft_wrap=True)
