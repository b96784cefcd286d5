"""What can be asked of links by name: read, checked, applied and given back."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import TestbedError
from testbed.links.interface import Bursts, Direction, Link, LinkEnd
from testbed.live.settings import KEYS, LinkSetting, applied, check, describe, select
from testbed.scale import Scale

SCALE = Scale()
DIRECTION = Direction(one_way_delay_ns=10_000_000, rate_bps=100_000_000, queue_bytes=625_000)


def link(a: str, b: str) -> Link:
    return Link(f"{a}-{b}", LinkEnd(a, "x"), LinkEnd(b, "y"), DIRECTION, DIRECTION)


LINKS = (link("nyc", "lon"), link("lon", "fra"), link("nyc-e", "nyc-h1"), link("lon-e", "lon-h1"))


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("nyc-lon", [("nyc", "lon"), ("lon", "nyc")]),
        ("lon-nyc", [("nyc", "lon"), ("lon", "nyc")]),
        ("lon>nyc", [("lon", "nyc")]),
        ("nyc>lon", [("nyc", "lon")]),
        ("nyc-e>nyc-h1", [("nyc-e", "nyc-h1")]),
        ("nyc-e-nyc-h1", [("nyc-e", "nyc-h1"), ("nyc-h1", "nyc-e")]),
        ("access", [("nyc-e", "nyc-h1"), ("nyc-h1", "nyc-e"), ("lon-e", "lon-h1"), ("lon-h1", "lon-e")]),
    ],
)
def test_names_of_links(name: str, ends: list[tuple[str, str]]) -> None:
    assert select(LINKS, name) == ends


def test_unknown_link_is_refused_with_those_that_exist() -> None:
    with pytest.raises(TestbedError, match=r"'nyc-fra'.*nyc-lon, lon-fra$"):
        select(LINKS, "nyc-fra")


def test_values_become_emulated_physics() -> None:
    values = {"one_way_delay_ms": 60, "rate_gbps": 50.0, "queue_mb": 100, "jitter_ms": 1.5, "loss": "0.1%"}
    values |= {"duplicate": "2 %", "corrupt": "0%", "reorder": True, "bursts": "enter=0.1%,leave=25%"}
    change = check(values, Scale(1e-3, 2.0))
    assert change.physics == {
        "one_way_delay_ns": 120_000_000,
        "rate_bps": 25_000_000,
        "queue_bytes": 100_000,
        "jitter_ns": 3_000_000,
        "loss": 0.001,
        "duplicate": 0.02,
        "corrupt": 0.0,
        "reorder": True,
        "bursts": Bursts(enter=0.001, leave=0.25),
    }
    assert change.up is None


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({}, "at least one"),
        ({"delay": 5}, "'delay'"),
        ({"one_way_delay_ms": "60"}, "one_way_delay_ms"),
        ({"one_way_delay_ms": -1}, "one_way_delay_ms"),
        ({"one_way_delay_ms": True}, "one_way_delay_ms"),
        ({"one_way_delay_ms": float("nan")}, "one_way_delay_ms"),
        ({"one_way_delay_ms": None}, "one_way_delay_ms"),
        ({"rate_gbps": 0}, "rate_gbps"),
        ({"queue_mb": float("inf")}, "queue_mb"),
        ({"loss": 0.1}, "percent"),
        ({"loss": "0.1"}, "percent"),
        ({"loss": "101%"}, "100%"),
        ({"loss": "-1%"}, "loss"),
        ({"corrupt": "x%"}, "corrupt"),
        ({"bursts": "enter=1%"}, "bursts"),
        ({"bursts": "enter=1%,leave=2"}, "bursts leave"),
        ({"bursts": "enter=1%,leave=2%,leave=3%"}, "bursts"),
        ({"bursts": 5}, "bursts"),
        ({"reorder": "yes"}, "reorder"),
        ({"up": False}, "down = true"),
        ({"up": True, "down": True}, "up"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(TestbedError, match=named) as refused:
        check(values, SCALE)
    assert "\n" not in str(refused.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=10), JSON, max_size=3))
def test_whatever_a_client_sends_is_understood_or_refused(values: dict[str, Any]) -> None:
    with suppress(TestbedError):  # and nothing else
        change = check(values, SCALE)
        assert change.physics or change.up is not None


def test_huge_numbers_are_refused() -> None:
    for huge in (10**400, 1e308, -(10**400)):
        with pytest.raises(TestbedError, match="one_way_delay_ms"):
            check({"one_way_delay_ms": huge}, SCALE)


def test_settings_change_only_what_they_name() -> None:
    changed = applied(LINKS, [LinkSetting("nyc>lon", {"loss": "1%"}), LinkSetting("access", {"jitter_ms": 2})], SCALE)
    assert changed[0].forward == Direction(10_000_000, 100_000_000, 625_000, loss=0.01)
    assert changed[0].backward == DIRECTION
    assert changed[1] == LINKS[1]
    for access in changed[2:]:
        assert access.forward.jitter_ns == access.backward.jitter_ns == 2_000_000


def test_what_is_described_is_what_was_asked() -> None:
    scale = Scale(1e-3, 4.0)
    values = {"one_way_delay_ms": 12.5, "rate_gbps": 40.0, "queue_mb": 50.0, "jitter_ms": 0.5}
    changed = applied(LINKS, [LinkSetting("nyc-lon", {**values, "loss": "3%"})], scale)[0].forward
    described = describe(changed, scale)
    assert {key: described[key] for key in values} == pytest.approx(values)
    assert described["loss"] == 0.03
    assert described["bursts"] is None
