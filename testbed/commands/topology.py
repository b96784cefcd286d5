"""`testbed topology`: what topologies there are, and what is in one."""

import argparse
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from testbed.network.naming import core_pairs
from testbed.topology.files import topology_to_json
from testbed.topology.load import BUILT_IN, load_topology


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "topology",
        help="list and show topologies",
        description="List the built-in topologies, or show one, or a topology file.",
        epilog="example: testbed topology show nine-city",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="the built-in topologies", epilog="example: testbed topology list")
    listing.set_defaults(execute=_list)
    showing = actions.add_parser(
        "show", help="islands and links of one topology", epilog="example: testbed topology show nine-city --json"
    )
    showing.add_argument("topology", metavar="NAME|FILE", help="built-in topology or a topology file")
    showing.add_argument("--json", action="store_true", help="print it in the native file format")
    showing.set_defaults(execute=_show)


def _list(_arguments: argparse.Namespace) -> int:
    for name in BUILT_IN:
        topology = load_topology(name)
        print(f"{name}: {len(topology.islands)} islands, {len(core_pairs(topology))} core links")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    topology = load_topology(arguments.topology)
    if arguments.json:
        print(json.dumps(topology_to_json(topology), indent=2))
        return 0
    islands = Table(title=f"{topology.name}: islands", title_justify="left")
    for heading in ("island", "region", "access up, Gbit/s", "access down, Gbit/s", "access one-way delay, ms"):
        islands.add_column(heading)
    for island in topology.islands:
        islands.add_row(
            island.id,
            island.region or "–",
            f"{island.access_up_gbps:g}",
            f"{island.access_down_gbps:g}",
            f"{island.access_one_way_delay_ms:g}",
        )
    links = Table(title="core links, per direction", title_justify="left")
    for heading in ("link", "one-way delay, ms", "rate, Gbit/s"):
        links.add_column(heading)
    for link in topology.links:
        links.add_row(f"{link.source}>{link.target}", f"{link.one_way_delay_ms:g}", f"{link.rate_gbps:g}")
    console = Console()
    console.print(islands)
    if topology.transits:
        console.print(f"transit routers: {', '.join(topology.transits)}", highlight=False)
    console.print(links)
    return 0
