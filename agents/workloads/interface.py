"""What a workload is: what the islands train. Read this first; each workload is a module of its own beside this one.

A run calls `tensors` and `prepare` once, in its own process, before anything is built. Each island's trainer process
then makes its `Trainer` with `island`. It trains step by step; every round its parameters (one flat vector, the tensors
laid end to end) are exchanged, and what follows from the mean over the clique is loaded back. The same calls in one
plain process (`agents.reference`) must give the same parameters bit for bit, so a trainer uses no clock, no thread and
no randomness but what the seed gives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Parameters = NDArray[np.floating[Any]]
"""A flat vector of float32 or float64; the exchange keeps the type."""


@dataclass(frozen=True)
class Tensor:
    """One part of the parameters: how many values, and the largest magnitude they are expected to have.

    The range fixes the scale of the fixed-point numbers: larger values saturate, a wide range costs precision.
    """

    name: str
    values: int
    range: float


@dataclass(frozen=True)
class Setting:
    """The run that a workload is in; `directory` is its own place in the run's directory, the same for all calls."""

    directory: Path
    seed: int
    islands: int
    payload_values: int


class Trainer(Protocol):
    """One island's training."""

    def parameters(self) -> Parameters:
        """The parameters, a flat vector as long as all tensors together. Equal on all islands at first."""
        ...

    def load_parameters(self, parameters: Parameters) -> None:
        """Go on from these, the outcome of an exchange: same shape and type as `parameters()` gave."""
        ...

    def train(self, step: int) -> None:
        """One step of training, such as a minibatch or a few; steps count from 0 through the whole run."""
        ...

    def evaluate(self) -> Mapping[str, float]:
        """Measures of the model as it is now, such as `accuracy` (0 to 1)."""
        ...


class Workload(Protocol):
    """Something to train."""

    name: str

    def tensors(self, setting: Setting) -> Sequence[Tensor]:
        """The tensors that are exchanged; pure. Together they must not have more than `payload_values` values."""
        ...

    def prepare(self, setting: Setting) -> None:
        """Load or make the data once and leave it in `setting.directory`, which exists. May import heavy packages."""
        ...

    def island(self, setting: Setting, island_id: int) -> Trainer:
        """The training of one island, 0 ≤ island_id < islands, from what `prepare` left."""
        ...


def value_count(tensors: Sequence[Tensor]) -> int:
    """How many values the tensors have together."""
    return sum(tensor.values for tensor in tensors)
