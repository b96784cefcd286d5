"""Training in one plain process, without a network: islands alone, one ideal machine, and any schedule's curve."""

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from testbed.errors import RunFailed
from testbed.run.processes import pinned_environment, python_command

TIMEOUT_S = 1800  # minutes when the machine is ours alone


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


class PlainRun:
    """A training that goes on in a process of its own; leaving the context ends it."""

    def __init__(self, training: PlainTraining) -> None:
        """Starts it. It dies with this process."""
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
        words = (str(word) for option in options.items() for word in option)
        # Files in memory, since what nobody reads yet would fill a pipe.
        self._output, self._errors = os.memfd_create("output"), os.memfd_create("errors")
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *python_command("agents.reference", *words)],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            env=pinned_environment("reference"),
        )
        self._deadline = time.monotonic() + TIMEOUT_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._output)
        os.close(self._errors)

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None or time.monotonic() > self._deadline

    def outcome(self) -> Mapping[str, Any]:
        """Wait for it; what `agents.reference` prints. Raises RunFailed."""
        try:
            status = self._process.wait(max(self._deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            raise RunFailed(f"training in one process took more than {TIMEOUT_S} s") from None
        if status:
            said = _read(self._errors).decode(errors="replace").strip().splitlines()
            raise RunFailed(f"training in one process failed: {said[-1] if said else f'exit status {status}'}")
        outcome: Mapping[str, Any] = json.loads(_read(self._output))
        return outcome


def _read(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def train_plain(training: PlainTraining) -> Mapping[str, Any]:
    """The outcome of `agents.reference`, as it prints it. Raises RunFailed."""
    with PlainRun(training) as run:
        return run.outcome()
