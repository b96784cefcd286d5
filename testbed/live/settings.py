"""What can be asked of a link by name, in the same keys in `link set`, the options of `run` and scenario files.

Times, rates and sizes are numbers with the unit in the key, at full size and undilated; chances are texts in percent.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from testbed.errors import TestbedError
from testbed.links.interface import Bursts, Direction, Link
from testbed.scale import Scale

Ends = tuple[str, str]  # sending node, receiving node

# No link has more of anything, in the units of the keys.
_MOST = 1e9

NUMBERS = ("one_way_delay_ms", "rate_gbps", "queue_mb", "jitter_ms")
CHANCES = ("loss", "duplicate", "corrupt")
KEYS = (*NUMBERS, *CHANCES, "bursts", "reorder", "up", "down")

_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE]-?[0-9]+)?)\s*%\s*")
_BURSTS_FORM = "enter=0.1%,leave=25%[,loss=100%][,loss_outside=0%] or none"


@dataclass(frozen=True)
class LinkSetting:
    """What to change of one link, or of all that a name stands for; the values by key, as the user wrote them."""

    link: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """The same, checked: fields of a direction to replace, in emulated units, and whether the link goes up or down."""

    physics: Mapping[str, Any]
    up: bool | None


def select(links: Sequence[Link], name: str) -> list[Ends]:
    """The directions that a name stands for: A-B both, A>B one, `access` those of all access links.

    Raises TestbedError, with the names that exist.
    """
    if name == "access":
        return [ends for link in links if is_access(link) for ends in both_ways(link)]
    for link in links:
        a, b = link.a.node, link.b.node
        if name in {f"{a}-{b}", f"{b}-{a}"}:
            return list(both_ways(link))
        if name in {f"{a}>{b}", f"{b}>{a}"}:
            return [(a, b) if name == f"{a}>{b}" else (b, a)]
    known = ", ".join(link.name for link in links if not is_access(link))
    raise TestbedError(
        f"there is no link {name!r}; A-B is a link, A>B one direction of it, access all access links; there are {known}"
    )


def is_access(link: Link) -> bool:
    """Whether a link joins an edge and a host."""
    return link.a.node.endswith("-e")


def both_ways(link: Link) -> tuple[Ends, Ends]:
    return (link.a.node, link.b.node), (link.b.node, link.a.node)


def check(values: Mapping[str, Any], scale: Scale) -> Change:
    """Check keys and values. Raises TestbedError that names the key and what it should be."""
    physics: dict[str, Any] = {}
    up = None
    if not values:
        raise TestbedError(f"nothing to change is named; name at least one of {', '.join(KEYS)}")
    for key, value in values.items():
        if key in NUMBERS:
            field, number = _number(key, value, scale)
            physics[field] = number
        elif key in CHANCES:
            physics[key] = _chance(key, value)
        elif key == "bursts":
            physics[key] = _bursts(value)
        elif key == "reorder":
            if not isinstance(value, bool):
                raise TestbedError(f"reorder: {value!r} is neither true nor false")
            physics[key] = value
        elif key in {"up", "down"}:
            if value is not True or up is not None:
                raise TestbedError(f"{key}: {value!r} is no way to say it; write either up = true or down = true")
            up = key == "up"
        else:
            raise TestbedError(f"{key!r} is nothing that a link has; there are {', '.join(KEYS)}")
    return Change(physics, up)


def applied(links: Sequence[Link], settings: Sequence[LinkSetting], scale: Scale) -> tuple[Link, ...]:
    """Links with other physics from the start on. Raises TestbedError that names the link."""
    physics = {
        ends: direction
        for link in links
        for ends, direction in zip(both_ways(link), (link.forward, link.backward), strict=True)
    }
    for setting in settings:
        try:
            change = check(setting.values, scale)
        except TestbedError as error:
            raise TestbedError(f"link {setting.link}: {error}") from error
        for ends in select(links, setting.link):
            physics[ends] = replace(physics[ends], **change.physics)
    there, back = ([physics[both_ways(link)[way]] for link in links] for way in (0, 1))
    return tuple(
        replace(link, forward=forward, backward=backward)
        for link, forward, backward in zip(links, there, back, strict=True)
    )


def describe(direction: Direction, scale: Scale) -> dict[str, Any]:
    """The physics of a direction with units in the names, at full size and undilated; chances are probabilities."""
    values: dict[str, Any] = {
        "one_way_delay_ms": scale.undilated_ms(direction.one_way_delay_ns),
        "rate_gbps": direction.rate_bps * scale.time_dilation / scale.rate_scale / 1e9,
        "queue_mb": scale.full_size_gb(direction.queue_bytes) * 1e3,
        "jitter_ms": scale.undilated_ms(direction.jitter_ns),
        "loss": direction.loss,
        "bursts": None,
        "duplicate": direction.duplicate,
        "corrupt": direction.corrupt,
        "reorder": direction.reorder,
    }
    if direction.bursts is not None:
        values["bursts"] = {field.name: getattr(direction.bursts, field.name) for field in fields(Bursts)}
    return values


def _number(key: str, value: Any, scale: Scale) -> tuple[str, int]:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        raise TestbedError(f"{key}: {value!r} is not a number from 0 to {_MOST:g}, in the unit of its name")
    match key:
        case "one_way_delay_ms":
            return "one_way_delay_ns", scale.emulated_ns(value)
        case "jitter_ms":
            return "jitter_ns", scale.emulated_ns(value)
        case "queue_mb":
            return "queue_bytes", scale.size_bytes(value / 1e3)
    rate_bps = scale.rate_bps(value)
    if rate_bps < 1:
        raise TestbedError(
            f"{key}: {value!r} leaves nothing at rate scale {scale.rate_scale:g}; down takes a link down"
        )
    return "rate_bps", rate_bps


def _chance(key: str, value: Any) -> float:
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    chance = float(match[1]) / 100 if match else math.inf
    if chance > 1:
        raise TestbedError(f'{key}: {value!r} is no share; write it in percent, from "0%" to "100%"')
    return chance


def _bursts(value: Any) -> Bursts | None:
    if value == "none":
        return None
    words = [word.partition("=") for word in value.split(",")] if isinstance(value, str) else []
    chances = {name.strip(): text for name, _, text in words}
    known = {field.name for field in fields(Bursts)}
    if not {"enter", "leave"} <= set(chances) <= known or len(chances) < len(words):
        raise TestbedError(f"bursts: {value!r} is not understood; write {_BURSTS_FORM}")
    return Bursts(**{name: _chance(f"bursts {name}", text) for name, text in chances.items()})
