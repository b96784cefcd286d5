"""One island's part in the exchange of a round: parameters → contribution, and what came in → parameters."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents import float32
from agents.exchange_area import ExchangeArea
from agents.fixed_point import mean, quantise, spread_exponents
from agents.lanes import WORD_BITS, pack, unpack, word_count
from agents.outer import OuterOptimiser, OuterSettings
from agents.workloads.interface import Parameters, Tensor, Trainer, value_count


@dataclass(frozen=True)
class ExchangeSettings:
    """What all islands do alike: the packets' number format, values per 32-bit word, and the outer optimiser."""

    number_format: int = 0
    lanes: int = 1
    outer: OuterSettings = field(default_factory=OuterSettings)

    def to_message(self) -> dict[str, Any]:
        """As a trainer's `setup` has it."""
        return {"number_format": self.number_format, "lanes": self.lanes, "outer": vars(self.outer)}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> "ExchangeSettings":
        return cls(message["number_format"], message["lanes"], OuterSettings(**message["outer"]))


PLAIN = ExchangeSettings()


@dataclass(frozen=True)
class Contribution:
    """What the number format did to a contribution: how many values did not fit, were no numbers, or were denormals."""

    saturated: int
    non_finite: int
    denormal: int = 0


@dataclass(frozen=True)
class Applied:
    """Digests of the mean that a round brought, which members of a clique share, and of the parameters after it."""

    digest: str
    parameters_digest: str


def parameters_digest(parameters: Parameters) -> str:
    """BLAKE2b of the parameters' bytes: 16 bytes, in hexadecimal."""
    return hashlib.blake2b(np.ascontiguousarray(parameters).data, digest_size=16).hexdigest()


class IslandExchange:
    """The state of an island around its rounds: the trainer, and the residual that quantising has left so far.

    Training may go on between `contribute` and `apply`: the mean takes the place of what was sent, and what was trained
    since stays on top of it.
    """

    def __init__(
        self,
        trainer: Trainer,
        tensors: Sequence[Tensor],
        island_id: int,
        area: ExchangeArea,
        settings: ExchangeSettings = PLAIN,
    ) -> None:
        """Raises ValueError if the tensors do not fit the area, or are not what the trainer has."""
        self._values = value_count(tensors)
        self._words = word_count(self._values, settings.lanes)
        room = area.sent.shape[1]
        if self._words > room:
            raise ValueError(
                f"the workload has {self._values} values, but the payload holds {room * settings.lanes}: "
                "raise the payload"
            )
        if trainer.parameters().shape != (self._values,):
            raise ValueError(f"the trainer's parameters are not a flat vector of the tensors' {self._values} values")
        self.trainer = trainer
        self._sizes = [tensor.values for tensor in tensors]
        self._area = area
        self._own_bit = 1 << island_id
        self._floats = settings.number_format == float32.NUMBER_FORMAT
        self._lanes = settings.lanes
        self._bits = WORD_BITS // settings.lanes
        self._outer = OuterOptimiser(settings.outer, trainer.parameters().astype(np.float64))
        self._residual: NDArray[np.float32] = np.zeros(self._values, np.float32)
        self._scale: list[int] = []
        self._exponents: NDArray[np.int32] = np.zeros(self._values, np.int32)
        self._state_sent: Parameters = trainer.parameters().copy()

    def set_scale(self, exponents: Sequence[int]) -> None:
        """From now on a value of tensor i is an integer · 2^−exponents[i]. Raises ValueError for a wrong number."""
        if list(exponents) != self._scale:
            self._exponents = spread_exponents(self._sizes, exponents)
            self._scale = list(exponents)

    def contribute(self, round_number: int, clique_size: int) -> Contribution:
        """Leave the round's contribution in `sent`: parameters plus residual, quantised; zeros up to the payload.

        In f32: the parameters, without what `float32.clean` takes out.
        """
        sent = self._area.sent[self._area.row(round_number)]
        self._state_sent = self.trainer.parameters().copy()
        sent[self._words :] = 0
        if self._floats:
            cleaned = float32.clean(self._state_sent)
            sent[: self._words] = cleaned.floats.view(np.int32)
            return Contribution(cleaned.saturated, cleaned.non_finite, cleaned.denormal)
        wanted = self._state_sent.astype(np.float64) + self._residual
        quantised = quantise(wanted, self._exponents, clique_size, self._bits)
        self._residual = quantised.residual
        sent[: self._words] = pack(quantised.integers, self._lanes)
        return Contribution(quantised.saturated, quantised.non_finite)

    def apply(self, round_number: int) -> Applied:
        """Average what came in with the own contribution into the parameters.

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
        values_per_chunk = self._area.values_per_chunk * self._lanes
        total = summed[: self._words]
        if self._floats:
            averaged = mean(total.view(np.float32), contributors, values_per_chunk, np.zeros_like(total))
        else:
            averaged = mean(unpack(total, self._lanes, self._values), contributors, values_per_chunk, self._exponents)
        now = self.trainer.parameters()
        brought = averaged.astype(now.dtype)
        self.trainer.load_parameters(self._go_on_from(averaged, now).astype(now.dtype))
        digest = parameters_digest(brought)
        after = self.trainer.parameters()
        return Applied(digest, digest if np.array_equal(after, brought) else parameters_digest(after))

    def _go_on_from(self, averaged: NDArray[np.float64], now: Parameters) -> NDArray[np.float64]:
        target = self._outer.step(averaged)
        if np.array_equal(now, self._state_sent):
            return target
        trained = now.astype(np.float64) - self._state_sent
        if not np.isfinite(trained).all():
            trained[~np.isfinite(trained)] = 0
        return target + trained
