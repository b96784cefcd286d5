"""Seeded whole numbers in place of a model: as many as the payload holds, and large enough to use all of the headroom.

Parameters are float64, which holds every int32 and its multiples by powers of two exactly. So quantisation loses
nothing, and what an island sends after a step can be recomputed from (seed, island, step) alone: it is
`integers(setting, island, step)` · 2^e, e being the scale exponent (0 when the largest clique needs as many bits of
headroom as all islands together).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from agents.fixed_point import largest_integer
from agents.workloads.interface import Parameters, Setting, Tensor, Trainer


def integers(setting: Setting, island_id: int, step: int) -> NDArray[np.int32]:
    """What the island has after that step: evenly spread over ±largest_integer(islands), the two extremes in front.

    The extremes stand at the same place on every island, so that the sum there is the largest that can occur.
    """
    limit = largest_integer(setting.islands)
    generator = np.random.default_rng([setting.seed, island_id, step])
    values = generator.integers(-limit, limit, size=setting.payload_values, dtype=np.int32, endpoint=True)
    extremes = np.array([limit, -limit], np.int32)[: len(values)]
    values[: len(extremes)] = extremes
    return values


class SyntheticTrainer:
    """An island whose parameters are the last step's integers, whatever an exchange brings; zeros at first."""

    def __init__(self, setting: Setting, island_id: int) -> None:
        self._setting = setting
        self._island_id = island_id
        self._parameters = np.zeros(setting.payload_values, np.float64)

    def parameters(self) -> Parameters:
        return self._parameters

    def load_parameters(self, parameters: Parameters) -> None:
        """Not these: the next contribution shall be known beforehand."""

    def train(self, step: int) -> None:
        self._parameters = integers(self._setting, self._island_id, step).astype(np.float64)

    def evaluate(self) -> Mapping[str, float]:
        return {}


class Synthetic:
    name = "synthetic"

    def tensors(self, setting: Setting) -> Sequence[Tensor]:
        return [Tensor("integers", setting.payload_values, float(largest_integer(setting.islands)))]

    def prepare(self, setting: Setting) -> None:
        """Nothing to load: everything follows from the seed."""

    def island(self, setting: Setting, island_id: int) -> Trainer:
        return SyntheticTrainer(setting, island_id)
