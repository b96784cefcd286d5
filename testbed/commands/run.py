"""`testbed run`: the whole experiment."""

import argparse
import json
from pathlib import Path
from typing import Any

from agents.outer import OuterSettings
from aggregator.deadlines import DEADLINE_POLICIES
from scheduler.exchange import AGGREGATIONS
from testbed.commands.arguments import HelpFormatter, add_capture_bytes, add_impairment_options, number, whole_number
from testbed.commands.policy_schedule import policy_schedule
from testbed.errors import TestbedError
from testbed.run.opening import opened
from testbed.run.settings import (
    IGPS,
    NUMBER_FORMATS,
    REPAIRS,
    REPLANS,
    EdgeSettings,
    RecoverySettings,
    RunSettings,
    TrainingSettings,
)
from testbed.scale import Scale


def add_parser(commands: Any) -> None:
    defaults = RunSettings()
    parser: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="build the network, train over it, measure",
        description="Build the emulated network, train the islands over it by the policy's schedule, and check and "
        "measure everything. Needs root. Times, rates and sizes are given, and printed, at full size.",
        epilog="example: sudo testbed run --policy triangles --memory-gb 0 --rounds 20 --json",
        formatter_class=HelpFormatter,
    )
    for title, description, add_options in (
        ("the schedule", "which islands exchange in which round, and when that changes", _add_schedule_options),
        ("the training", "see docs/workloads.md", _add_training_options),
        ("the network", "see docs/running.md, docs/links.md, docs/multicast.md", _add_network_options),
        ("the aggregators", "see docs/aggregator.md", _add_aggregator_options),
        ("loss, failures and recovery", "see docs/recovery.md, docs/scenarios.md", _add_trouble_options),
        ("what is kept and printed", "see docs/running.md, docs/capture.md", _add_record_options),
    ):
        add_options(parser.add_argument_group(title, description), defaults)
    parser.set_defaults(execute=execute)


def _add_schedule_options(group: argparse._ArgumentGroup, defaults: RunSettings) -> None:
    option = group.add_argument
    option("--topology", default=defaults.topology, metavar="NAME|FILE", help="built-in topology or a topology file")
    option(
        "--policy",
        default=defaults.policy,
        metavar="NAME",
        help="a policy by name (testbed policy list), or path/file.py:Name",
    )
    option("--memory-gb", type=number(at_least=0), default=defaults.memory_gb, help="memory of each aggregator")
    option("--payload-gb", type=number(above=0), default=defaults.payload_gb, help="what each island sends per round")
    option("--trees", default=defaults.trees, metavar="KIND", help="multicast trees of the plan: shortest or optimised")
    option("--rounds", type=whole_number(1), default=defaults.rounds, help="how many rounds to run")
    option(
        "--policy-schedule",
        type=policy_schedule,
        default=defaults.policy_schedule,
        metavar="ROUND=POLICY,…|FILE",
        help="go over to other policies at these rounds, counted from 1, or as a TOML file says (docs/control.md)",
    )
    option(
        "--replan",
        choices=REPLANS,
        default=defaults.replan,
        help="plan the policy again for the links as they are: when some go down or come back, always also when a "
        "delay or rate changes, or never",
    )


def _add_training_options(group: argparse._ArgumentGroup, defaults: RunSettings) -> None:
    option = group.add_argument
    option(
        "--workload",
        default=defaults.workload,
        metavar="NAME",
        help="what is trained: digits, characters, synthetic, or path/file.py:Name",
    )
    option(
        "--overlap",
        type=int,
        choices=(0, 1),
        default=int(defaults.training.overlap),
        help="1: train while a round is under way; a round then carries the state that was there at its start",
    )
    option(
        "--step-ms",
        type=number(at_least=0),
        default=defaults.training.step_ms,
        help="how long a training step takes on an island's emulated accelerator; 0: as long as it takes here",
    )
    option(
        "--local-steps",
        type=whole_number(1),
        metavar="H",
        help="training steps that go with each round (default: 1; with --overlap 1 as many as the round's time holds)",
    )
    option(
        "--outer-learning-rate",
        type=number(above=0),
        default=defaults.training.outer.learning_rate,
        help="how far to go towards the mean that an exchange brings; 1: all the way",
    )
    option(
        "--outer-momentum",
        type=number(at_least=0),
        default=defaults.training.outer.momentum,
        help="Nesterov momentum of these outer steps, below 1",
    )
    option(
        "--number-format",
        choices=tuple(NUMBER_FORMATS),
        default=defaults.number_format,
        help="fixed: exact integer sums, of 32 bits, or fixed16 and fixed8: coarser, two or four values per 32 bits; "
        "f32: for comparison, its sums depend on the order of arrival",
    )
    option("--seed", type=whole_number(0), default=defaults.seed, help="seed of everything random")


def _add_network_options(group: argparse._ArgumentGroup, defaults: RunSettings) -> None:
    option = group.add_argument
    option(
        "--rate-scale",
        type=number(above=0),
        default=defaults.scale.rate_scale,
        help="factor on rates, payload and memory, so that they fit this machine",
    )
    option(
        "--time-dilation",
        type=number(at_least=1),
        default=defaults.scale.time_dilation,
        help="factor on all times, for slow machines; results are printed undilated",
    )
    option("--links", default=defaults.links, metavar="KIND", help="how links are emulated: auto, netem or delayline")
    option(
        "--multicast",
        default=defaults.multicast,
        metavar="PLANE",
        help="who installs the trees: pim (FRR), direct (the testbed), auto, or unicast (a copy per receiver)",
    )
    option(
        "--igp",
        choices=IGPS,
        default=defaults.igp,
        help="how the routers of plane pim know their ways: from the testbed, or by FRR's OSPF, which with BFD also "
        "finds links that swallow everything (docs/multicast.md)",
    )
    option(
        "--hosts-per-island",
        type=whole_number(1),
        default=defaults.hosts_per_island,
        metavar="H",
        help="hosts that share an island's payload and access link",
    )
    option("--tags", action="store_true", help="give every packet a keyed tag, and refuse those without")


def _add_aggregator_options(group: argparse._ArgumentGroup, defaults: RunSettings) -> None:
    option = group.add_argument
    option(
        "--aggregation",
        choices=AGGREGATIONS,
        default=defaults.aggregation,
        help="where contributions are summed: at the island's edge, or by its hosts",
    )
    option(
        "--engine", default=defaults.engine, metavar="NAME|PATH", help="the aggregator's engine, or a library of one"
    )
    option(
        "--engine-load-time-s",
        type=number(at_least=0),
        default=defaults.edge.engine_load_time_s,
        help="how long the engine loads, as a card its image, from its first round on; until then contributions pass",
    )
    option(
        "--edge-memory-gb",
        type=number(at_least=0),
        default=defaults.edge.memory_gb,
        help="memory that the aggregators really have, if it is not what the plan counts on",
    )
    option(
        "--collision",
        choices=("bypass-new", "evict-old"),
        default=defaults.edge.collision,
        help="what gives way when a contribution finds no slot: itself, or the oldest sum",
    )
    option(
        "--late",
        choices=("bypass", "drop"),
        default=defaults.edge.late,
        help="what becomes of a contribution whose sum has gone out",
    )
    option(
        "--deadline",
        choices=tuple(DEADLINE_POLICIES),
        default=defaults.edge.deadline,
        help="how long a sum waits: as planned, or less as arrivals show",
    )
    option(
        "--slots-per-source",
        type=number(above=0),
        default=defaults.edge.slots_per_source,
        metavar="SHARE",
        help="share of an aggregator's slots that one island's contributions may take",
    )


def _add_trouble_options(group: argparse._ArgumentGroup, defaults: RunSettings) -> None:
    option = group.add_argument
    add_impairment_options(group)
    option("--scenario", type=Path, metavar="FILE", help="what happens to the links during the run (docs/scenarios.md)")
    option(
        "--repair",
        choices=REPAIRS,
        default=defaults.recovery.repair,
        help="what the WAN has lost is counted (none), or fetched from the islands that sent it (source)",
    )
    option(
        "--resend-window-ms",
        type=number(at_least=0),
        default=defaults.recovery.resend_window_ms,
        help="how long an edge keeps what it has sent, so that its hosts can ask for it again",
    )
    option(
        "--resend-memory-gb",
        type=number(at_least=0),
        default=defaults.recovery.resend_memory_gb,
        help="memory of each edge for that, apart from --memory-gb; 0: it keeps nothing",
    )


def _add_record_options(group: argparse._ArgumentGroup, defaults: RunSettings) -> None:
    option = group.add_argument
    option(
        "--capture",
        nargs="+",
        action="extend",
        default=[],
        metavar="WHERE",
        help="record frames into the run directory: all, core, access, or NODE:LINK for one end of a link",
    )
    add_capture_bytes(group)
    option("--out", type=Path, metavar="DIR", help="the run directory (default: runs/<UTC time>-<policy>)")
    option("--strict", action="store_true", help="exit 1 also when the median round is more than 5 %% off its plan")
    option("--cli", action="store_true", help="open Mininet's command line on the network after the last round")
    option("--json", action="store_true", help="print one JSON document instead of the table")


def execute(arguments: argparse.Namespace) -> int:
    if arguments.cli and arguments.json:
        raise TestbedError("--cli and --json: both want standard output; use one of them")
    with opened(_settings(arguments)) as run:
        # Only now: what builds a network takes a second to load, and the run can be looked at meanwhile.
        from rich.console import Console  # noqa: PLC0415

        from testbed.network.command_line import open_command_line  # noqa: PLC0415
        from testbed.run.experiment import Watchers, perform  # noqa: PLC0415
        from testbed.run.summary import passed, print_table  # noqa: PLC0415

        # With --json, standard output is for the document alone.
        console = Console(stderr=arguments.json, highlight=False, soft_wrap=True)
        watchers = (
            Watchers(after=lambda running: open_command_line(running.network.mininet)) if arguments.cli else Watchers()
        )
        summary = perform(run, console, watchers)
    if arguments.json:
        print(json.dumps(summary, indent=2))
    else:
        print_table(Console(), summary)
    return 0 if passed(summary, arguments.strict) else 1


def _settings(arguments: argparse.Namespace) -> RunSettings:
    return RunSettings(
        topology=arguments.topology,
        policy=arguments.policy,
        memory_gb=arguments.memory_gb,
        policy_schedule=arguments.policy_schedule,
        replan=arguments.replan,
        payload_gb=arguments.payload_gb,
        rounds=arguments.rounds,
        workload=arguments.workload,
        scale=Scale(arguments.rate_scale, arguments.time_dilation),
        links=arguments.links,
        multicast=arguments.multicast,
        igp=arguments.igp,
        aggregation=arguments.aggregation,
        trees=arguments.trees,
        hosts_per_island=arguments.hosts_per_island,
        engine=arguments.engine,
        training=TrainingSettings(
            overlap=bool(arguments.overlap),
            step_ms=arguments.step_ms,
            local_steps=arguments.local_steps,
            outer=OuterSettings(arguments.outer_learning_rate, arguments.outer_momentum),
        ),
        number_format=arguments.number_format,
        tags=arguments.tags,
        edge=EdgeSettings(
            memory_gb=arguments.edge_memory_gb,
            collision=arguments.collision,
            late=arguments.late,
            deadline=arguments.deadline,
            slots_per_source=arguments.slots_per_source,
            engine_load_time_s=arguments.engine_load_time_s,
        ),
        recovery=RecoverySettings(arguments.repair, arguments.resend_window_ms, arguments.resend_memory_gb),
        link_settings=tuple(arguments.link_settings),
        scenario=arguments.scenario,
        capture=tuple(arguments.capture),
        capture_bytes=arguments.capture_bytes,
        seed=arguments.seed,
        out=arguments.out,
        strict=arguments.strict,
    )
