"""What verify calls wrong, on made-up measurements."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from testbed.links.interface import Bursts, Direction
from testbed.scale import Scale
from testbed.verify.judging import Tolerance, chance_of, judge, mean_loss
from testbed.verify.measuring import LightLoad, Saturation

ASKED = Direction(one_way_delay_ns=10_000_000, rate_bps=100_000_000, queue_bytes=625_000)
PROBE_NS = 60 * 8e9 / 100_000_000


def light(delays_ms: Sequence[float] = (10.0,) * 1000, lost: int = 0, **others: int) -> LightLoad:
    counts = {"duplicated": 0, "corrupted": 0, "reordered": 0} | others
    times_ns = tuple(round(delay * 1e6 + PROBE_NS) for delay in delays_ms)
    return LightLoad(sent=len(times_ns) + lost, one_way_ns=times_ns, lost=lost, **counts)


def wrong(asked: Direction, load: LightLoad, rate_bps: float | None = 100e6, scale: Scale | None = None) -> str:
    saturation = Saturation(rate_bps, 50_000_000, 69, "" if rate_bps else "too slow")
    return "; ".join(judge("a>b", asked, load, saturation, scale or Scale(), Tolerance()).wrong)


@pytest.mark.parametrize(("delay_ms", "named"), [(10.0, ""), (10.19, ""), (10.21, "10.210"), (9.79, "9.790")])
def test_delay_within_a_fifth_of_a_millisecond(delay_ms: float, named: str) -> None:
    text = wrong(ASKED, light([delay_ms] * 500))
    assert bool(text) == bool(named)
    assert named in text


def test_long_delays_are_within_a_hundredth() -> None:
    asked = replace(ASKED, one_way_delay_ns=100_000_000)
    assert wrong(asked, light([100.9] * 500)) == ""
    assert "one-way delay" in wrong(asked, light([101.1] * 500))


def test_time_of_a_probe_on_a_slow_line_is_no_delay() -> None:
    asked = replace(ASKED, rate_bps=100_000)
    own_ms = 60 * 8 / 100.0
    own = light([10.0 + own_ms - PROBE_NS / 1e6] * 100)
    assert wrong(asked, own, rate_bps=100_000) == ""
    assert "one-way delay" in wrong(asked, light([10.0] * 100), rate_bps=100_000)


def test_errors_are_judged_undilated() -> None:
    asked = replace(ASKED, one_way_delay_ns=40_000_000, rate_bps=25_000_000)
    late = light([40.6] * 500)
    assert wrong(asked, late, rate_bps=25e6, scale=Scale(time_dilation=4)) == ""
    assert "one-way delay" in wrong(asked, late, rate_bps=25e6)


@pytest.mark.parametrize(("rate_bps", "right"), [(98.1e6, True), (101.9e6, True), (97.9e6, False), (102.1e6, False)])
def test_rate_within_two_percent(rate_bps: float, right: bool) -> None:
    assert (wrong(ASKED, light(), rate_bps) == "") is right


def test_rate_that_was_not_measured_is_wrong_unless_it_cannot_be() -> None:
    assert "too slow" in wrong(ASKED, light(), None)
    assert wrong(replace(ASKED, queue_bytes=0), light(), None) == ""
    assert wrong(replace(ASKED, loss=1.0), light([], lost=1000), None) == ""


def test_any_loss_is_wrong_where_none_was_asked() -> None:
    assert "1 of 1001 frames were lost" in wrong(ASKED, light(lost=1))


@pytest.mark.parametrize(("lost", "right"), [(10, True), (25, True), (0, True), (40, False)])
def test_loss_within_what_chance_allows(lost: int, right: bool) -> None:
    asked = replace(ASKED, loss=0.01)
    assert (wrong(asked, light([10.0] * (1000 - lost), lost=lost)) == "") is right


def test_missing_loss_is_found() -> None:
    assert "0 of 1000 frames were lost" in wrong(replace(ASKED, loss=0.05), light())


def test_losses_in_bursts_scatter_more() -> None:
    bursts = Bursts(enter=0.001, leave=0.1)
    asked = replace(ASKED, bursts=bursts)
    assert mean_loss(asked) == pytest.approx(0.001 / 0.101)
    # Thirty losses too many are three bursts, which is nothing special; they are if losses are independent.
    load = light([10.0] * 960, lost=40)
    assert wrong(asked, load) == ""
    assert "lost" in wrong(replace(ASKED, loss=mean_loss(asked)), load)


def test_overtaking_is_wrong_unless_asked() -> None:
    assert "overtaken" in wrong(ASKED, light(reordered=1))
    assert wrong(replace(ASKED, reorder=True), light(reordered=1)) == ""


def test_duplicates_and_corruption_are_counted() -> None:
    assert "duplicated" in wrong(ASKED, light(duplicated=1))
    assert "corrupted" in wrong(ASKED, light(corrupted=1))
    assert wrong(replace(ASKED, duplicate=0.01, corrupt=0.01), light(duplicated=9, corrupted=12)) == ""


def test_jitter_is_measured() -> None:
    asked = replace(ASKED, jitter_ns=4_000_000)
    spread = [6.0 + 8.0 * n / 999 for n in range(1000)]
    assert wrong(asked, light(spread)) == ""
    assert "jitter" in wrong(asked, light())


def test_chance_is_that_of_the_binomial_distribution() -> None:
    assert chance_of(1, 10, 0.0) == 0.0
    assert chance_of(0, 10, 0.0) == 1.0
    assert chance_of(10, 10, 1.0) == 1.0
    assert chance_of(9, 10, 1.0) == 0.0
    assert chance_of(2, 2, 0.5) == pytest.approx(0.25)
    assert chance_of(0, 3, 0.5) == pytest.approx(0.125)
    assert chance_of(1, 2, 0.5) == pytest.approx(0.75)
