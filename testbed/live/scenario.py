"""Scenario files: what happens to the links, and when (docs/scenarios.md)."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import TestbedError
from testbed.links.interface import Link, LinkKind
from testbed.live.settings import LinkSetting, applied, select
from testbed.scale import Scale

_TIME = re.compile(r"([0-9]+(?:\.[0-9]*)?)\s*(ms|s|min)")
_NS_PER_UNIT = {"ms": 10**6, "s": 10**9, "min": 60 * 10**9}


@dataclass(frozen=True)
class Event:
    """Something to change, `at_ms` (undilated) after the start of the first round; `number` as in the file, from 1."""

    number: int
    at_ms: float
    setting: LinkSetting


def load_scenario(path: Path, links: Sequence[Link], kind: LinkKind, scale: Scale) -> tuple[Event, ...]:
    """The events of a file in the order of their times, each checked against the links as they will be by then.

    Raises TestbedError, in one line, that names the file, the event and the key.
    """
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise TestbedError(f"scenario {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TestbedError(f"scenario {path}: {error}") from error
    tables = content.pop("event", None)
    if content:
        raise TestbedError(
            f"scenario {path}: unknown key {next(iter(content))!r}; a scenario has [[event]] tables only"
        )
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables) or not tables:
        raise TestbedError(f"scenario {path}: there is no event; write [[event]] tables")
    events = []
    for number, table in enumerate(tables, start=1):
        try:
            events.append(_event(number, dict(table)))
        except TestbedError as error:
            raise TestbedError(f"scenario {path}: event {number}: {error}") from error
    events.sort(key=lambda event: event.at_ms)
    for event in events:
        try:
            links = _after(event, links, kind, scale)
        except TestbedError as error:
            raise TestbedError(f"scenario {path}: event {event.number}: {error}") from error
    return tuple(events)


def _event(number: int, table: dict[str, object]) -> Event:
    for key in ("at", "link"):
        if key not in table:
            raise TestbedError(f"{key!r} is missing")
    at_ms, link = parse_time_ms(table.pop("at")), table.pop("link")
    if not isinstance(link, str):
        raise TestbedError(f"link: {link!r} is no name; write a text")
    return Event(number, at_ms, LinkSetting(link, table))


def parse_time_ms(at: object) -> float:
    """A time as the key `at` of files has it: `"10s"`. Raises TestbedError for anything else."""
    match = _TIME.fullmatch(at) if isinstance(at, str) else None
    if match is None:
        raise TestbedError(f'at: {at!r} is no time; write a number and its unit, as "10s", "250ms" or "2min"')
    return float(match[1]) * _NS_PER_UNIT[match[2]] / 1e6


def _after(event: Event, links: Sequence[Link], kind: LinkKind, scale: Scale) -> Sequence[Link]:
    """The links once the event has happened. Raises TestbedError if it cannot."""
    values = event.setting.values
    if (values.get("up") or values.get("down")) and len(select(links, event.setting.link)) == 1:
        raise TestbedError(f"link {event.setting.link}: a link goes up or down as a whole; name it A-B")
    after = applied(links, [event.setting], scale)
    refusal = kind.refusal(after)
    if refusal is not None:
        raise TestbedError(refusal)
    return after
