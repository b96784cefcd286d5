"""`testbed link`: show and change the links of the running experiment."""

import argparse
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from testbed.client import connect
from testbed.commands.arguments import add_run_options, number
from testbed.errors import TestbedError
from testbed.live.settings import CHANCES, NUMBERS

_HELP = {
    "one_way_delay_ms": "one-way delay",
    "rate_gbps": "rate, at full size",
    "queue_mb": "bytes that may wait, at full size",
    "jitter_ms": "how much the delay varies, both ways",
    "loss": "share of frames that are lost",
    "duplicate": "share of frames that are sent twice",
    "corrupt": "share of frames with a flipped bit",
}
_TABLE_WIDTH = 130


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "link",
        help="show and change links of the running experiment",
        description="Show and change links of the running experiment. LINK: A-B both directions, A>B one (quote it), "
        "access all access links. Needs root.",
        epilog="example: sudo testbed link set nyc-lon --one-way-delay-ms 60 --loss 0.1%",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    showing = actions.add_parser("show", help="the physics in force", epilog="example: sudo testbed link show nyc-lon")
    showing.add_argument("link", metavar="LINK", nargs="?", help="default: all")
    showing.set_defaults(execute=_show)
    setting = actions.add_parser(
        "set",
        help="change what is named, and nothing else",
        epilog="example: sudo testbed link set nyc-lon --one-way-delay-ms 60 --loss 0.1%",
    )
    setting.add_argument("link", metavar="LINK")
    for key in NUMBERS:
        setting.add_argument(_option(key), type=number(at_least=0), metavar="X", help=_HELP[key])
    for key in CHANCES:
        setting.add_argument(_option(key), metavar="P%", help=_HELP[key])
    setting.add_argument("--bursts", metavar="enter=P%,leave=P%", help="losses in bursts (Gilbert-Elliott), or none")
    setting.add_argument("--reorder", action=argparse.BooleanOptionalAction, help="let frames overtake by their jitter")
    state = setting.add_mutually_exclusive_group()
    state.add_argument("--down", action="store_true", default=None, help="take the link down: no carrier at both ends")
    state.add_argument("--up", action="store_true", default=None, help="take it up again")
    setting.set_defaults(execute=_set)
    for action in (showing, setting):
        add_run_options(action)


def _option(key: str) -> str:
    return "--" + key.replace("_", "-")


def _show(arguments: argparse.Namespace) -> int:
    with connect(arguments.run) as run:
        _print(run.call("link_show", link=arguments.link)["links"], arguments.json)
    return 0


def _set(arguments: argparse.Namespace) -> int:
    keys = (*NUMBERS, *CHANCES, "bursts", "reorder", "down", "up")
    values = {key: getattr(arguments, key) for key in keys if getattr(arguments, key) is not None}
    if not values:
        raise TestbedError("link set: name what to change; see testbed link set --help")
    with connect(arguments.run) as run:
        _print(run.call("link_set", link=arguments.link, values=values)["links"], arguments.json)
    return 0


def _print(links: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"links": links}, indent=2))
        return
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False)
    headings = ("delay, ms", "Gbit/s", "queue, MB", "jitter, ms", "loss", "in bursts", "duplicate", "corrupt")
    for heading in ("link", "state", *headings, "reorder"):
        table.add_column(heading, no_wrap=True)
    for link in links:
        bursts = link["bursts"]
        table.add_row(
            link["link"],
            "up" if link["up"] else "DOWN",
            *(f"{link[key]:g}" for key in ("one_way_delay_ms", "rate_gbps", "queue_mb", "jitter_ms")),
            f"{link['loss'] * 100:g}%",
            f"enter {bursts['enter'] * 100:g}%, leave {bursts['leave'] * 100:g}%" if bursts else "no",
            *(f"{link[key] * 100:g}%" for key in ("duplicate", "corrupt")),
            "yes" if link["reorder"] else "no",
        )
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(table)
