"""Is a direction what was asked? Tolerances, and the words and numbers of the answer."""

import math
from dataclasses import dataclass
from typing import Any

from testbed.links.interface import Bursts, Direction
from testbed.scale import Scale
from testbed.verify.measuring import LEAST_QUEUE_BYTES, LightLoad, Saturation, serialisation_ns
from testbed.verify.ports import SMALLEST_FRAME

DELAY_TOLERANCE_MS, DELAY_TOLERANCE_SHARE = 0.2, 0.01
RATE_TOLERANCE_SHARE = 0.02
JITTER_TOLERANCE_SHARE = 0.2
# A count of losses is wrong if chance alone would not give one so far off in a million links.
LEAST_CHANCE = 1e-6
# Estimates from random delays scatter; this many standard errors are granted.
_STANDARD_ERRORS = 5.0
# Beyond that, too little of a burst may arrive to say how fast it went.
_MOST_LOSS = 0.7


@dataclass(frozen=True)
class Tolerance:
    """How far a direction may be off; delays undilated. A rate that cannot be measured is wrong, or only noted."""

    delay_ms: float = DELAY_TOLERANCE_MS
    delay_share: float = DELAY_TOLERANCE_SHARE
    rate_share: float = RATE_TOLERANCE_SHARE
    rate_must_be_measured: bool = True


@dataclass(frozen=True)
class Finding:
    """One direction: what was asked, what was measured, and what is wrong with it (empty: nothing).

    Times are in ms and undilated, the rate in Gbit/s at full size, chances are probabilities.
    """

    link: str
    asked: dict[str, Any]
    measured: dict[str, Any]
    wrong: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.wrong

    def to_json(self) -> dict[str, Any]:
        return {
            "link": self.link,
            "asked": self.asked,
            "measured": self.measured,
            "ok": self.ok,
            "wrong": list(self.wrong),
            "notes": list(self.notes),
        }


def judge(
    link: str, asked: Direction, light: LightLoad, saturation: Saturation, scale: Scale, tolerance: Tolerance
) -> Finding:
    """Compare one direction with what was asked of it."""
    wrong: list[str] = []
    notes: list[str] = []
    wrong += _wrong_chances(asked, light)
    if not asked.reorder and light.reordered:
        wrong.append(f"{light.reordered} of {light.sent} frames were overtaken, none was asked to be")
    delay = None
    if light.one_way_ns:
        # A frame is received when its last bit is: what it takes to leave the sender is no delay of the link.
        own_ns = serialisation_ns(SMALLEST_FRAME, saturation.rate_bps or asked.rate_bps)
        times_ns = sorted(time_ns - own_ns for time_ns in light.one_way_ns)
        delay = {name: scale.undilated_ms(_quantile(times_ns, rank)) for name, rank in _RANKS.items()}
        jitter_ms = scale.undilated_ms((_quantile(times_ns, 0.9) - _quantile(times_ns, 0.1)) / 1.6)
        wrong += _wrong_delay(asked, delay, jitter_ms, len(times_ns), scale, tolerance)
    rate_gbps = None
    if saturation.rate_bps is not None:
        rate_gbps = saturation.rate_bps * scale.time_dilation / scale.rate_scale / 1e9
        off = saturation.rate_bps / asked.rate_bps - 1
        if abs(off) > tolerance.rate_share + _rate_scatter(asked, saturation):
            wrong.append(f"rate is {rate_gbps:.4g} Gbit/s, asked {_full_rate_gbps(asked, scale):.4g} ({off:+.1%})")
    else:
        measurable = mean_loss(asked) <= _MOST_LOSS and asked.queue_bytes >= LEAST_QUEUE_BYTES
        (wrong if measurable and tolerance.rate_must_be_measured else notes).append(
            f"rate not measured: {saturation.reason}"
        )
    measured = {
        "one_way_delay_ms": delay,
        "rate_gbps": rate_gbps,
        "loss": light.lost / light.sent,
        "probes": light.sent,
        "lost": light.lost,
        "reordered": light.reordered,
        "duplicated": light.duplicated,
        "corrupted": light.corrupted,
    }
    if asked.jitter_ns:
        measured["jitter_ms"] = jitter_ms if delay else None
    return Finding(link, _asked(asked, scale), measured, tuple(wrong), tuple(notes))


def mean_loss(direction: Direction) -> float:
    """The share of frames that a direction should lose in the long run."""
    bursts = direction.bursts
    if bursts is None:
        return direction.loss
    share = bursts.enter / (bursts.enter + bursts.leave) if bursts.enter else 0.0
    in_bursts = share * bursts.loss + (1 - share) * bursts.loss_outside
    return 1 - (1 - direction.loss) * (1 - in_bursts)


def chance_of(count: int, trials: int, probability: float) -> float:
    """How likely a binomial count is to be as far off its mean, on the same side, as this one."""
    upper = count > trials * probability
    counts = range(count, trials + 1) if upper else range(count + 1)
    return min(math.fsum(_binomial(one, trials, probability) for one in counts), 1.0)


_RANKS = {"min": 0.0, "median": 0.5, "p99": 0.99}


def _binomial(count: int, trials: int, probability: float) -> float:
    if probability in {0.0, 1.0}:
        return float(count == trials * probability)
    ways = math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
    return math.exp(ways + count * math.log(probability) + (trials - count) * math.log1p(-probability))


def _wrong_chances(asked: Direction, light: LightLoad) -> list[str]:
    wrong = []
    arrived = light.sent - light.lost
    for what, count, trials, probability in (
        ("lost", light.lost, light.sent, mean_loss(asked)),
        ("duplicated", light.duplicated, arrived, asked.duplicate),
        ("corrupted", light.corrupted, arrived, asked.corrupt),
    ):
        # Losses in bursts are as uncertain as those of fewer independent frames.
        independent = _independence(asked.bursts) if what == "lost" else 1.0
        if chance_of(round(count * independent), round(trials * independent), probability) < LEAST_CHANCE:
            wrong.append(f"{count} of {trials} frames were {what}, asked {probability:.3%}")
    return wrong


def _independence(bursts: Bursts | None) -> float:
    """How many independent frames one frame is worth: the state of a line with bursts is correlated over time."""
    if bursts is None or not bursts.enter:
        return 1.0
    memory = 1 - bursts.enter - bursts.leave
    return (1 - memory) / (1 + memory) if memory > 0 else 1.0


def _wrong_delay(
    asked: Direction, delay: dict[str, float], jitter_ms: float, count: int, scale: Scale, tolerance: Tolerance
) -> list[str]:
    wrong = []
    asked_ms, asked_jitter_ms = scale.undilated_ms(asked.one_way_delay_ns), scale.undilated_ms(asked.jitter_ns)
    allowed_ms = max(tolerance.delay_ms, tolerance.delay_share * asked_ms)
    allowed_ms += _STANDARD_ERRORS * asked_jitter_ms / math.sqrt(count)
    if abs(delay["median"] - asked_ms) > allowed_ms:
        wrong.append(f"one-way delay is {delay['median']:.3f} ms, asked {asked_ms:.3f} ms")
    allowed_ms = max(tolerance.delay_ms, JITTER_TOLERANCE_SHARE * asked_jitter_ms)
    allowed_ms += _STANDARD_ERRORS * asked_jitter_ms / 2 / math.sqrt(count)
    if asked.jitter_ns and abs(jitter_ms - asked_jitter_ms) > allowed_ms:
        wrong.append(f"jitter is {jitter_ms:.3f} ms, asked {asked_jitter_ms:.3f} ms")
    return wrong


def _rate_scatter(asked: Direction, saturation: Saturation) -> float:
    """What jitter adds to the error of a slope through a burst's arrival times, as a share of the rate."""
    if not asked.jitter_ns or not saturation.burst_ns:
        return 0.0
    deviation_ns = asked.jitter_ns / math.sqrt(3)
    error = deviation_ns * math.sqrt(12 / saturation.frames) / saturation.burst_ns
    return _STANDARD_ERRORS * error


def _full_rate_gbps(asked: Direction, scale: Scale) -> float:
    return asked.rate_bps * scale.time_dilation / scale.rate_scale / 1e9


def _asked(asked: Direction, scale: Scale) -> dict[str, Any]:
    values: dict[str, Any] = {
        "one_way_delay_ms": scale.undilated_ms(asked.one_way_delay_ns),
        "rate_gbps": _full_rate_gbps(asked, scale),
        "loss": mean_loss(asked),
    }
    if asked.jitter_ns:
        values["jitter_ms"] = scale.undilated_ms(asked.jitter_ns)
    for name in ("reorder", "duplicate", "corrupt"):
        if getattr(asked, name):
            values[name] = getattr(asked, name)
    return values


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(max(math.ceil(share * len(ordered)) - 1, 0), len(ordered) - 1)]
