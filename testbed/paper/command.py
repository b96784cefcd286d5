"""The comparison from its options to its document."""

import argparse
import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from testbed.errors import TestbedError
from testbed.paper.comparison import rows as make_rows
from testbed.paper.experiments import carry_out, experiments
from testbed.paper.row import Row
from testbed.paper.training import TRAINED_S, WORKLOADS, Curve, methods, statements
from testbed.paper.training import curves as make_curves
from testbed.plots.training import plot_curves
from testbed.run.frames import frame_payload
from testbed.run.rundir import check_run_directory
from testbed.run.settings import REFERENCE_PAYLOAD_GB, RunSettings
from testbed.scale import Scale
from testbed.topology.load import load_topology

TOPOLOGY = "nine-city"


def compare(arguments: argparse.Namespace, progress: Console) -> tuple[dict[str, Any], list[Row]]:
    """Do all runs; returns the document of `paper --json`, and its rows. Raises TestbedError for bad input."""
    if arguments.plot is not None and not arguments.training:
        raise TestbedError("--plot draws the curves of --training: give both")
    check_run_directory(arguments.out)
    directory: Path = arguments.out or Path("runs") / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-paper"
    try:
        directory.mkdir(parents=True, exist_ok=arguments.out is not None)
    except OSError as error:
        raise TestbedError(f"--out {directory}: {error.strerror}; name another") from error
    scale = Scale(arguments.rate_scale, arguments.time_dilation)
    outcomes = {}
    for experiment in experiments(scale, arguments.links, arguments.seed):
        outcomes[experiment.key] = carry_out(experiment, directory, progress)
    topology = load_topology(TOPOLOGY)
    rows = make_rows(topology, outcomes)
    curves: list[Curve] = []
    if arguments.training:
        framing = frame_payload(scale.size_bytes(REFERENCE_PAYLOAD_GB))
        found = methods(topology, outcomes, RunSettings().training.step_ms)
        for workload in WORKLOADS:
            progress.print(f"training {workload}: {len(found)} ways, {TRAINED_S:g} s each")
            curves += make_curves(topology, framing, found, workload, arguments.seed)
        if arguments.plot is not None:
            plot_curves(curves, arguments.plot)
    document = {
        "topology": TOPOLOGY,
        "rows": [row.to_json() for row in rows],
        "curves": [asdict(curve) for curve in curves],
        "statements": statements(curves),
        "not_run": {key: outcome.trouble for key, outcome in outcomes.items() if outcome.summary is None},
        "run_dir": str(directory.resolve()),
    }
    (directory / "paper.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return document, rows
