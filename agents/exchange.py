"""One island's part in the exchange of a round: parameters → contribution, and what came in → parameters."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents import float32
from agents.exchange_area import ExchangeArea
from agents.fixed_point import mean, quantise, spread_exponents
from agents.workloads.interface import Parameters, Tensor, Trainer, value_count


@dataclass(frozen=True)
class Contribution:
    """What the number format did to a contribution: how many values did not fit, were no numbers, or were denormals."""

    saturated: int
    non_finite: int
    denormal: int = 0


def parameters_digest(parameters: Parameters) -> str:
    """BLAKE2b of the parameters' bytes: 16 bytes, in hexadecimal."""
    return hashlib.blake2b(np.ascontiguousarray(parameters).data, digest_size=16).hexdigest()


class IslandExchange:
    """The state of an island around its rounds: the trainer, and the residual that quantising has left so far."""

    def __init__(
        self,
        trainer: Trainer,
        tensors: Sequence[Tensor],
        island_id: int,
        area: ExchangeArea,
        number_format: int = 0,
    ) -> None:
        """Raises ValueError if the tensors do not fit the area, or are not what the trainer has."""
        self._values = value_count(tensors)
        room = area.sent.shape[1]
        if self._values > room:
            raise ValueError(f"the workload has {self._values} values, but the payload holds {room}: raise the payload")
        if trainer.parameters().shape != (self._values,):
            raise ValueError(f"the trainer's parameters are not a flat vector of the tensors' {self._values} values")
        self.trainer = trainer
        self._sizes = [tensor.values for tensor in tensors]
        self._area = area
        self._own_bit = 1 << island_id
        self._floats = number_format == float32.NUMBER_FORMAT
        self._residual: NDArray[np.float32] = np.zeros(self._values, np.float32)
        self._exponents: NDArray[np.int32] = np.zeros(self._values, np.int32)

    def set_scale(self, exponents: Sequence[int]) -> None:
        """From now on a value of tensor i is an integer · 2^−exponents[i]. Raises ValueError for a wrong number."""
        self._exponents = spread_exponents(self._sizes, exponents)

    def contribute(self, round_number: int, clique_size: int) -> Contribution:
        """Leave the round's contribution in `sent`: parameters plus residual, quantised; zeros up to the payload.

        In f32: the parameters, without what `float32.clean` takes out.
        """
        sent = self._area.sent[self._area.row(round_number)]
        if self._floats:
            cleaned = float32.clean(self.trainer.parameters())
            sent[: self._values] = cleaned.floats.view(np.int32)
            sent[self._values :] = 0
            return Contribution(cleaned.saturated, cleaned.non_finite, cleaned.denormal)
        wanted = self.trainer.parameters().astype(np.float64) + self._residual
        quantised = quantise(wanted, self._exponents, clique_size)
        self._residual = quantised.residual
        sent[: self._values] = quantised.integers
        sent[self._values :] = 0
        return Contribution(quantised.saturated, quantised.non_finite)

    def apply(self, round_number: int) -> str:
        """Average what came in with the own contribution into the parameters; returns their digest.

        The own contribution is added to `summed` and `bitmaps`. Raises ValueError if it is there already.
        """
        row = self._area.row(round_number)
        summed, bitmaps = self._area.summed[row], self._area.bitmaps[row]
        own_bit = np.uint64(self._own_bit)
        if np.any(bitmaps & own_bit):
            raise ValueError(f"round {round_number} already has the island's own contribution in its sums")
        if self._floats:
            summed.view(np.float32)[:] += self._area.sent[row].view(np.float32)
        else:
            summed += self._area.sent[row]
        bitmaps |= own_bit
        contributors = np.array([bitmap.bit_count() for bitmap in bitmaps.tolist()])
        total = summed[: self._values]
        if self._floats:
            averaged = mean(total.view(np.float32), contributors, self._area.values_per_chunk, np.zeros_like(total))
        else:
            averaged = mean(total, contributors, self._area.values_per_chunk, self._exponents)
        self.trainer.load_parameters(averaged.astype(self.trainer.parameters().dtype))
        return parameters_digest(self.trainer.parameters())
