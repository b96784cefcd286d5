"""`testbed baseline`: what schedules are compared with."""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from testbed.baselines.ring import TRANSPORTS, run_ring
from testbed.commands.arguments import HelpFormatter, add_network_options, number, whole_number
from testbed.run.settings import RunSettings, TrainingSettings
from testbed.scale import Scale


def add_parser(commands: Any) -> None:
    defaults = RunSettings()
    parser: argparse.ArgumentParser = commands.add_parser(
        "baseline",
        help="train by ring all-reduce over the same links, for comparison",
        description="Build the emulated network and train synchronously over it: each step is followed by a ring "
        "all-reduce of the whole payload over TCP. Needs root, and PyTorch for Gloo.",
        epilog="example: sudo testbed baseline ring-tcp --steps 12",
        formatter_class=HelpFormatter,
    )
    option = parser.add_argument
    option("name", choices=tuple(TRANSPORTS), help="plain TCP, or PyTorch's Gloo")
    add_network_options(parser)
    option("--payload-gb", type=number(above=0), default=defaults.payload_gb, help="what each island contributes")
    option("--steps", type=whole_number(1), default=12, help="how many steps to train; the first two are not counted")
    option("--step-ms", type=number(at_least=0), default=defaults.training.step_ms, help="how long a step computes")
    option("--workload", default=defaults.workload, metavar="NAME", help="what is trained, as in `testbed run`")
    option("--out", type=Path, metavar="DIR", help="the run directory (default: runs/<UTC time>-<name>)")
    option("--json", action="store_true", help="print one JSON document instead of the summary")
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    settings = RunSettings(
        topology=arguments.topology,
        policy=arguments.name,
        payload_gb=arguments.payload_gb,
        rounds=arguments.steps,
        workload=arguments.workload,
        training=TrainingSettings(step_ms=arguments.step_ms),
        scale=Scale(arguments.rate_scale, arguments.time_dilation),
        links=arguments.links,
        link_settings=tuple(arguments.link_settings),
        seed=arguments.seed,
        out=arguments.out,
    )
    summary = run_ring(settings, Console(stderr=arguments.json, highlight=False, soft_wrap=True))
    if arguments.json:
        print(json.dumps(summary, indent=2))
        return 0
    measured = summary["measured"]
    print(
        f"all-reduce: mean {measured['exchange_ms']['mean']:.1f} ms, longest {measured['exchange_ms']['max']:.1f}; "
        f"islands idle {measured['idle_fraction']:.1%}, {measured['steps_per_s']:.3f} steps/s; "
        f"results in {summary['run_dir']}"
    )
    return 0
