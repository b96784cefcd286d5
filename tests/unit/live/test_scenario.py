"""Scenario files: read in order, and refused before anything is built."""

from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.links.interface import Link, LinkKind
from testbed.live.scenario import Event, load_scenario
from testbed.scale import Scale
from tests.unit.live.test_settings import LINKS


class _Kind:
    """Refuses jitter above the delay, as link kinds do."""

    name = "strict"

    def refusal(self, links: list[Link]) -> str | None:
        for link in links:
            if link.forward.jitter_ns > link.forward.one_way_delay_ns:
                return f"link {link.name}: jitter is above the delay"
        return None


def load(directory: Path, text: str) -> tuple[Event, ...]:
    path = directory / "scenario.toml"
    path.write_text(text, encoding="utf-8")
    kind: LinkKind = _Kind()  # type: ignore[assignment]
    return load_scenario(path, LINKS, kind, Scale())


def test_events_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    events = load(
        tmp_path,
        """
        [[event]]
        at = "2min"
        link = "nyc-lon"
        up = true

        [[event]]
        at = "1.5s"
        link = "nyc-lon"
        down = true

        [[event]]
        at = "250ms"
        link = "access"
        loss = "1%"
        one_way_delay_ms = 3
        """,
    )
    assert [(event.number, event.at_ms) for event in events] == [(3, 250.0), (2, 1500.0), (1, 120_000.0)]
    assert events[0].setting.values == {"loss": "1%", "one_way_delay_ms": 3}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no event"),
        ("event = 5", "no event"),
        ("[[event", "scenario.toml"),
        ("seed = 1\n[[event]]\nat='1s'", "'seed'"),
        ("[[event]]\nlink = 'nyc-lon'\nloss = '1%'", "event 1: 'at'"),
        ("[[event]]\nat = '1s'\nloss = '1%'", "event 1: 'link'"),
        ("[[event]]\nat = 10\nlink = 'nyc-lon'\nloss = '1%'", "event 1: at: 10"),
        ("[[event]]\nat = '10'\nlink = 'nyc-lon'\nloss = '1%'", "event 1: at: '10'"),
        ("[[event]]\nat = '-1s'\nlink = 'nyc-lon'\nloss = '1%'", "event 1: at"),
        ("[[event]]\nat = '1s'\nlink = 'nyc-tyo'\nloss = '1%'", "event 1: there is no link 'nyc-tyo'"),
        ("[[event]]\nat = '1s'\nlink = 5\nloss = '1%'", "event 1: link"),
        ("[[event]]\nat = '1s'\nlink = 'nyc-lon'", "event 1: .*nothing to change"),
        ("[[event]]\nat = '1s'\nlink = 'nyc-lon'\nloss = 0.01", "event 1: .*loss"),
        ("[[event]]\nat = '1s'\nlink = 'nyc-lon'\ndelay = 5", "event 1: .*'delay'"),
        ("[[event]]\nat = '1s'\nlink = 'nyc>lon'\ndown = true", "event 1: .*as a whole"),
        (
            "[[event]]\nat='1s'\nlink='nyc-lon'\nloss='1%'\n[[event]]\nat='2s'\nlink='nyc-lon'\njitter_ms=50",
            "event 2: .*jitter is above",
        ),
        # Fine on the links as they are, but not after what has happened by then.
        (
            "[[event]]\nat='2s'\nlink='nyc-lon'\njitter_ms=5\n[[event]]\nat='1s'\nlink='nyc-lon'\none_way_delay_ms=4",
            "event 1: .*jitter is above",
        ),
    ],
)
def test_wrong_scenarios_are_refused_in_one_line(text: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=named) as refused:
        load(tmp_path, text)
    assert "scenario.toml" in str(refused.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=r"nothing\.toml"):
        load_scenario(tmp_path / "nothing.toml", LINKS, _Kind(), Scale())  # type: ignore[arg-type]
