"""Training in one plain process, without a network: islands alone, one ideal machine, and any schedule's curve."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.errors import RunFailed
from testbed.run.processes import pinned_environment, python_command

TIMEOUT_S = 600


@dataclass(frozen=True)
class PlainTraining:
    """What to train. `schedule`: rounds of cliques of island ids; `steps`: how many go with each round."""

    workload: str
    islands: int
    seed: int
    words: int
    words_per_chunk: int
    schedule: Sequence[Sequence[Sequence[int]]]
    rounds: int
    steps: Sequence[int] = (1,)
    overlap: bool = False
    evaluate_every: int = 0


def train_plain(training: PlainTraining) -> Mapping[str, Any]:
    """The outcome of `agents.reference`, as it prints it. Raises RunFailed."""
    options: dict[str, object] = {
        "--workload": training.workload,
        "--islands": training.islands,
        "--seed": training.seed,
        "--values": training.words,
        "--values-per-chunk": training.words_per_chunk,
        "--schedule": json.dumps(training.schedule),
        "--rounds": training.rounds,
        "--steps": json.dumps(list(training.steps)),
        "--overlap": int(training.overlap),
        "--evaluate-every": training.evaluate_every,
    }
    command = python_command("agents.reference", *(str(word) for option in options.items() for word in option))
    environment = pinned_environment("reference")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise RunFailed(f"training in one process failed: {done.stderr.strip().splitlines()[-1:]}")
    outcome: Mapping[str, Any] = json.loads(done.stdout)
    return outcome
