"""Whether training over the network and training in one plain process are the same, as the loss curves presume.

A short run over the emulated network, and the same rounds and steps in a plain process: after each round every island
must have the same mean and the same parameters, bit for bit.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from testbed.baselines.plain import PlainTraining, train_plain
from testbed.errors import RunFailed
from testbed.live.protocol import EVENTS
from testbed.paper.methods import Method
from testbed.run.experiment import run_experiment
from testbed.run.frames import Framing
from testbed.run.settings import RunSettings

ROUNDS = 4


@dataclass(frozen=True)
class Agreement:
    """The first `rounds` rounds of a method over the network: whether they gave what the plain process gives."""

    workload: str
    method: str
    rounds: int
    equal: bool
    run_dir: str


def check_agreement(
    method: Method, settings: RunSettings, framing: Framing, islands: Sequence[str], console: Console
) -> Agreement:
    """Run a method's first rounds over the network and in a plain process. Raises RunFailed, TestbedError and others.

    `settings`: those of the run. The process does as many steps with each round as the run had.
    """
    summary = run_experiment(settings, console)
    lost = summary["contributions"]["lost"]
    if lost:
        raise RunFailed(f"{lost} contributions were lost: what was averaged is not what is compared")
    run_dir = Path(summary["run_dir"])
    lines = (run_dir / EVENTS).read_text(encoding="utf-8").splitlines()
    rounds = [event for event in map(json.loads, lines) if event["event"] == "round"]
    plain = train_plain(
        PlainTraining(
            settings.workload,
            len(islands),
            settings.seed,
            framing.values,
            framing.values_per_chunk,
            method.schedule,
            len(rounds),
            [max(report["steps"] for report in event["trained"].values()) for event in rounds],
            settings.training.overlap,
        )
    )
    return Agreement(settings.workload, method.name, len(rounds), agree(rounds, plain, islands), str(run_dir))


def agree(rounds: Sequence[Mapping[str, Any]], plain: Mapping[str, Any], islands: Sequence[str]) -> bool:
    """Whether the digests of `round` events, of the mean and of the parameters after it, are those of the process."""
    return all(
        [[event["applied"][island][digest] for island in islands] for event in rounds] == plain[f"{digest}s"]
        for digest in ("digest", "parameters_digest")
    )
