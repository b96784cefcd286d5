"""What the link kind delayline refuses, and the words it exchanges with its program."""

from dataclasses import replace

import pytest

from testbed.links.checks import wrong_link
from testbed.links.delayline.messages import bucket_bound_ns, parse_counters, parse_direction, settings
from testbed.links.delayline.sizes import (
    MOST_RATE_BPS,
    SLOT_BYTES,
    arena_bytes,
    line_bytes,
    memory_bytes,
    ring_slots,
    wrong_direction,
)
from testbed.links.interface import Bursts, Direction, Lateness, Link, LinkEnd, default_queue_bytes

GOOD = Direction(one_way_delay_ns=40_000_000, rate_bps=100_000_000, queue_bytes=625_000)
LINK = Link("nyc-lon", LinkEnd("nyc", "nyc-lon"), LinkEnd("lon", "lon-nyc"), GOOD, GOOD)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"one_way_delay_ns": -1}, "delay"),
        ({"one_way_delay_ns": 10**13}, "an hour"),
        ({"rate_bps": 0}, "rate"),
        ({"rate_bps": MOST_RATE_BPS + 1}, "lower the rate scale"),
        ({"queue_bytes": -1}, "queue"),
        ({"loss": -0.1}, "loss"),
        ({"loss": 1.1}, "loss"),
        ({"loss": float("nan")}, "loss"),
        ({"seed": 2**63}, "seed"),
        ({"jitter_ns": -1}, "jitter"),
        ({"jitter_ns": 40_000_001}, "jitter"),
        ({"duplicate": 2.0}, "duplicate"),
        ({"corrupt": -1.0}, "corrupt"),
        ({"bursts": Bursts(1.5, 0.1)}, "bursts enter"),
        ({"bursts": Bursts(0.1, 0.1, loss=float("inf"))}, "bursts loss"),
    ],
)
def test_a_wrong_direction_is_named_with_its_link(change: dict[str, float], says: str) -> None:
    wrong = wrong_link([replace(LINK, backward=replace(GOOD, **change))], wrong_direction)
    assert wrong is not None
    assert "\n" not in wrong
    assert "link nyc-lon (lon>nyc)" in wrong
    assert says in wrong


@pytest.mark.parametrize(
    "direction",
    [
        GOOD,
        Direction(0, 1, 0),
        Direction(0, MOST_RATE_BPS, 0, loss=1.0, seed=-(2**63)),
        replace(GOOD, jitter_ns=40_000_000, duplicate=1.0, corrupt=1.0, bursts=Bursts(0.0, 1.0)),
    ],
)
def test_what_can_be_had_is_not_refused(direction: Direction) -> None:
    assert wrong_direction(direction) is None
    assert wrong_link([replace(LINK, forward=direction)], wrong_direction) is None


def test_wrong_sets_of_links() -> None:
    def wrong(*links: Link) -> str:
        return str(wrong_link(links, wrong_direction))

    assert "same two nodes" in wrong(LINK, replace(LINK, name="again", a=LINK.b, b=LINK.a))
    assert "both ends" in wrong(replace(LINK, b=LINK.a))
    assert "1 to 15 bytes" in wrong(replace(LINK, a=LinkEnd("nyc", "sixteen-letters-")))
    assert "1 to 15 bytes" in wrong(replace(LINK, a=LinkEnd("nyc", "")))


def test_memory_covers_flight_queue_and_overload() -> None:
    assert line_bytes(GOOD) == 100_000_000 // 8 * 90 // 1000 + 625_000
    assert ring_slots(GOOD, generous=False) == -(-500_000 // 9014) + 256
    assert ring_slots(GOOD, generous=True) == -(-1_125_000 // 9014) + 256
    assert arena_bytes(GOOD) >= 1.5 * line_bytes(GOOD)
    least = 2 * ring_slots(GOOD, generous=False) * SLOT_BYTES
    assert memory_bytes([LINK]) >= least + 2 * line_bytes(GOOD)
    assert memory_bytes([]) == 0


def test_default_queue_is_fifty_milliseconds_and_at_least_64_frames() -> None:
    assert default_queue_bytes(1_000_000_000) == 6_250_000
    assert default_queue_bytes(1_000_000) == 64 * 9014


@pytest.mark.parametrize(
    "direction",
    [
        GOOD,
        replace(
            GOOD, loss=1 / 3, seed=-9, jitter_ns=5, reorder=True, duplicate=1e-9, bursts=Bursts(0.1, 0.2, 0.3, 0.4)
        ),
    ],
)
def test_a_direction_survives_the_way_to_the_program_and_back(direction: Direction) -> None:
    assert parse_direction({name: repr(value) for name, value in settings(direction).items()}) == direction


def bucket(ns: int) -> int:
    """As histogram.h says: eight buckets per power of two."""
    if ns < 8:
        return ns
    exponent = ns.bit_length() - 1
    return (exponent - 2) * 8 + (ns >> (exponent - 3)) - 8


def test_bucket_bounds_are_the_last_value_of_their_bucket() -> None:
    for number in range(320):
        assert bucket(bucket_bound_ns(number)) == number
        assert bucket(bucket_bound_ns(number) + 1) == number + 1


def test_lateness() -> None:
    before = Lateness(((100, 3), (200, 1)))
    after = Lateness(((100, 3), (200, 5), (400, 96)))
    assert after.since(before) == Lateness(((200, 4), (400, 96)))
    assert after.since(after) == Lateness()
    assert [after.since(before).quantile_ns(q) for q in (0.01, 0.04, 0.05, 0.99, 1.0)] == [200, 200, 400, 400, 400]
    assert Lateness().quantile_ns(0.99) == 0


def test_counters_add_up_what_is_not_physics() -> None:
    words = (
        "frames_in bytes_in frames_out bytes_out held dropped_queue dropped_loss dropped_overflow dropped_room "
        "dropped_send dropped_down dropped_cut duplicated corrupted reordered send_retries stamps_refused "
        "queue_high_water_bytes worst_lateness_ns"
    )
    row = {name: str(2**number) for number, name in enumerate(words.split())} | {"lateness": "0:1,9:2"}
    counters = parse_counters(row)
    other = sum(int(row[name]) for name in ("dropped_overflow", "dropped_room", "dropped_send", "dropped_cut"))
    assert counters.dropped_other == other
    assert counters.dropped_down == int(row["dropped_down"])
    assert counters.reordered == int(row["reordered"])
    assert counters.lateness == Lateness(((0, 1), (9, 2)))
    assert parse_counters(row | {"lateness": ""}).lateness == Lateness()
