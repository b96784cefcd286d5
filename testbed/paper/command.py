"""The comparison from its options to its document."""

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from testbed.errors import TestbedError
from testbed.links.kinds import choose_link_kind
from testbed.network import naming
from testbed.network.emulated import emulated_links
from testbed.paper.comparison import plan_all
from testbed.paper.experiments import carry_out, experiments
from testbed.paper.record import Record
from testbed.paper.train import train_all
from testbed.plots.training import check_plot, plot_curves
from testbed.run.machine import check_machine
from testbed.run.rundir import check_run_directory, give_to_caller
from testbed.run.settings import RunSettings
from testbed.scale import Scale
from testbed.topology.load import load_topology

TOPOLOGY = "nine-city"


def compare(arguments: argparse.Namespace, progress: Console) -> Record:
    """Do all runs, one after the other. Raises TestbedError or LinkError for bad input or an unfit machine."""
    if arguments.plot is not None and not arguments.training:
        raise TestbedError("--plot draws the curves of --training: give both")
    if arguments.plot is not None:
        check_plot(arguments.plot)
    check_run_directory(arguments.out)
    topology = load_topology(TOPOLOGY)
    scale = Scale(arguments.rate_scale, arguments.time_dilation)
    check_machine(len(naming.node_names(topology, hosts=1)))
    choose_link_kind(arguments.links, emulated_links(topology, scale, arguments.seed))
    directory: Path = arguments.out or Path("runs") / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-paper"
    try:
        directory.mkdir(parents=True, exist_ok=arguments.out is not None)
    except OSError as error:
        raise TestbedError(f"--out {directory}: {error.strerror}; name another") from error
    try:
        record = Record(directory, TOPOLOGY, plan_all(topology))
        began = time.monotonic()
        everything = experiments(scale, arguments.links, arguments.seed)
        for number, experiment in enumerate(everything, 1):
            so_far_s = int(time.monotonic() - began)
            progress.print(f"{number}/{len(everything)} after {so_far_s // 60}:{so_far_s % 60:02}: {experiment.key}")
            record.outcome(experiment.key, carry_out(experiment, directory, progress))
        if arguments.training:
            common = RunSettings(scale=scale, links=arguments.links, seed=arguments.seed)
            train_all(topology, common, record, progress)
            if arguments.plot is not None:
                plot_curves(record.curves, arguments.plot)
        record.finish()
    finally:
        give_to_caller(directory)
    return record
