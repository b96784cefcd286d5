import hashlib
from collections.abc import Mapping

import numpy as np
import pytest

from agents.exchange import Applied, ExchangeSettings, IslandExchange, parameters_digest
from agents.exchange_area import ExchangeArea
from agents.outer import OuterSettings
from agents.workloads.interface import Parameters, Tensor

TENSORS = [Tensor("weights", 4, 1.0), Tensor("bias", 1, 1.0)]


class Still:
    """A trainer that does not train."""

    def __init__(self, values: list[float], dtype: type = np.float32) -> None:
        self.values = np.array(values, dtype)

    def parameters(self) -> Parameters:
        return self.values

    def load_parameters(self, parameters: Parameters) -> None:
        self.values = parameters

    def train(self, step: int) -> None:
        pass

    def evaluate(self) -> Mapping[str, float]:
        return {}


def make_area(values: int = 7, values_per_chunk: int = 2, depth: int = 2) -> ExchangeArea:
    """Full of what earlier rounds might have left."""
    chunks = -(-values // values_per_chunk)
    return ExchangeArea(
        np.full((depth, values), 77, np.int32),
        np.zeros((depth, values), np.int32),
        np.zeros((depth, chunks), np.uint64),
        values_per_chunk,
    )


def test_a_contribution_is_the_quantised_parameters_and_zeros_up_to_the_payload() -> None:
    area = make_area()
    exchange = IslandExchange(Still([1.0, 0.5, -0.25, 3.0, 2.0]), TENSORS, 0, area)
    exchange.set_scale([2, 3])
    contribution = exchange.contribute(3, 2)
    assert area.sent[1].tolist() == [4, 2, -1, 12, 16, 0, 0]
    assert area.sent[0].tolist() == [77] * 7
    assert (contribution.saturated, contribution.non_finite) == (0, 0)


def test_the_mean_divides_by_each_chunks_contributors_and_the_area_shows_what_was_applied() -> None:
    area = make_area()
    trainer = Still([1, 2, 3, 4, 5])
    exchange = IslandExchange(trainer, TENSORS, 2, area)
    exchange.set_scale([0, 0])
    exchange.contribute(0, 3)
    area.summed[0] = [10, 20, 30, 40, 0, 0, 0]
    area.bitmaps[0] = [0b011, 0b001, 0, 0]
    applied = exchange.apply(0)
    assert area.summed[0].tolist() == [11, 22, 33, 44, 5, 0, 0]
    assert area.bitmaps[0].tolist() == [0b111, 0b101, 0b100, 0b100]
    expected = np.array([11 / 3, 22 / 3, 33 / 2, 44 / 2, 5], np.float32)
    assert trainer.values.tolist() == expected.tolist()
    assert trainer.values.dtype == np.float32
    digest = hashlib.blake2b(expected.tobytes(), digest_size=16).hexdigest()
    assert applied == Applied(digest, digest)
    with pytest.raises(ValueError, match="round 0 already"):
        exchange.apply(0)


def test_what_rounding_takes_away_is_sent_later() -> None:
    area = make_area()
    trainer = Still([0.375] * 5)
    exchange = IslandExchange(trainer, TENSORS, 0, area)
    exchange.set_scale([0, 0])
    sent = []
    for round_number in range(8):
        trainer.values = np.full(5, 0.375, np.float32)
        exchange.contribute(round_number, 2)
        sent.append(int(area.sent[area.row(round_number), 0]))
    assert set(sent) == {0, 1}
    assert sum(sent) == 3  # 8 · 0.375


def test_the_residual_is_no_part_of_parameters_and_digest() -> None:
    area = make_area()
    trainer = Still([0.375, 1, 1, 1, 1])
    exchange = IslandExchange(trainer, TENSORS, 0, area)
    exchange.set_scale([0, 0])
    exchange.contribute(0, 1)
    assert exchange.apply(0).parameters_digest == parameters_digest(np.array([0, 1, 1, 1, 1], np.float32))
    assert trainer.values.tolist() == [0, 1, 1, 1, 1]


def test_saturated_and_non_finite_values_are_counted() -> None:
    area = make_area()
    exchange = IslandExchange(Still([2.0**31, -(2.0**31), np.nan, np.inf, 1]), TENSORS, 0, area)
    exchange.set_scale([0, 0])
    contribution = exchange.contribute(0, 9)
    assert (contribution.saturated, contribution.non_finite) == (2, 2)
    assert area.sent[0].tolist() == [2**27 - 1, -(2**27) + 1, 0, 0, 1, 0, 0]


def test_tensors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="5 values, but the payload holds 4"):
        IslandExchange(Still([1] * 5), TENSORS, 0, make_area(4))
    with pytest.raises(ValueError, match="not a flat vector"):
        IslandExchange(Still([1] * 4), TENSORS, 0, make_area())


def test_the_highest_contributor_id_has_its_bit() -> None:
    area = make_area()
    exchange = IslandExchange(Still([1] * 5), TENSORS, 63, area)
    exchange.set_scale([0, 0])
    exchange.contribute(0, 64)
    exchange.apply(0)
    assert area.bitmaps[0].tolist() == [1 << 63] * 4


def test_what_was_trained_meanwhile_stays_on_top_of_the_mean() -> None:
    area = make_area()
    trainer = Still([1, 2, 3, 4, 5])
    exchange = IslandExchange(trainer, TENSORS, 0, area)
    exchange.set_scale([4, 4])
    exchange.contribute(0, 2)
    trainer.values = trainer.values + np.float32(0.25)
    area.summed[0] = np.array([3, 4, 5, 6, 7, 0, 0]) << 4
    area.bitmaps[0] = 0b10
    applied = exchange.apply(0)
    assert trainer.values.tolist() == [2.25, 3.25, 4.25, 5.25, 6.25]
    assert applied.digest == parameters_digest(np.array([2, 3, 4, 5, 6], np.float32))
    assert applied.parameters_digest == parameters_digest(trainer.values)


def test_the_outer_optimiser_is_nesterov_on_the_way_to_the_mean() -> None:
    """Against the textbook recurrence, for one value that every exchange halves."""
    area = make_area(values=5, values_per_chunk=5, depth=1)
    rate, momentum = 0.7, 0.9
    trainer = Still([8.0] * 5, np.float64)
    exchange = IslandExchange(trainer, TENSORS, 0, area, ExchangeSettings(outer=OuterSettings(rate, momentum)))
    exchange.set_scale([20, 20])
    outer, velocity = 8.0, 0.0
    for round_number in range(4):
        area.summed[0], area.bitmaps[0] = 0, 0b10  # the other island sends zeros
        exchange.contribute(round_number, 2)
        applied = exchange.apply(round_number)
        gradient = outer - outer / 2
        velocity = momentum * velocity + gradient
        outer -= rate * (gradient + momentum * velocity)
        assert trainer.values.tolist() == pytest.approx([outer] * 5, abs=1e-5)
        assert applied.digest != applied.parameters_digest


@pytest.mark.parametrize(("lanes", "clique", "limit"), [(2, 9, 2047), (4, 9, 7), (4, 2, 63)])
def test_narrow_values_share_words_and_their_sums_come_back_whole(lanes: int, clique: int, limit: int) -> None:
    """All islands at the extremes, signs mixed: every lane's sum is as large as it can be."""
    tensors = [Tensor("weights", 9, 1.0)]
    signs = np.array([1, -1, 1, 1, -1, -1, 0, 1, -1])
    areas = [make_area(values=9, values_per_chunk=2, depth=1) for _ in range(clique)]
    exchanges = []
    for island, area in enumerate(areas):
        trainer = Still((signs * 2.0 * limit).tolist())  # twice what fits
        exchanges.append(IslandExchange(trainer, tensors, island, area, ExchangeSettings(lanes=lanes)))
        exchanges[-1].set_scale([0])
        contribution = exchanges[-1].contribute(0, clique)
        assert contribution.saturated == 8
    for island, area in enumerate(areas):
        others = [other.sent[0] for number, other in enumerate(areas) if number != island]
        area.summed[0] = np.sum(others, axis=0, dtype=np.int32)
        area.bitmaps[0] = ((1 << clique) - 1) & ~(1 << island)
        exchanges[island].apply(0)
        assert exchanges[island].trainer.parameters().tolist() == (signs * limit).tolist()


def test_what_narrow_values_lose_is_sent_later() -> None:
    """Error feedback: over many rounds the mean of what is sent is the value itself."""
    area = make_area(values=5, values_per_chunk=5, depth=1)
    trainer = Still([0.3] * 5)
    exchange = IslandExchange(trainer, TENSORS, 0, area, ExchangeSettings(lanes=4))
    exchange.set_scale([0, 0])
    means = []
    for round_number in range(100):
        trainer.values = np.full(5, 0.3, np.float32)
        area.summed[0], area.bitmaps[0] = 0, 0
        exchange.contribute(round_number, 1)
        exchange.apply(round_number)
        means.append(float(trainer.values[0]))
    assert set(means) == {0.0, 1.0}
    assert np.mean(means) == pytest.approx(0.3, abs=0.01)


def test_too_few_bits_for_a_clique_are_refused() -> None:
    exchange = IslandExchange(Still([1] * 5), TENSORS, 0, make_area(), ExchangeSettings(lanes=4))
    exchange.set_scale([0, 0])
    with pytest.raises(ValueError, match="8 bits are too few for the sums of 65 islands"):
        exchange.contribute(0, 65)
