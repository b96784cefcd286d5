"""What links of kind netem ask of the kernel, and what they refuse; no kernel is needed."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.links.interface import FRAME_BYTES, Bursts, Direction, Link, LinkEnd
from testbed.links.netem import Netem
from testbed.links.netem.parameters import (
    LEAST_RATE_BPS,
    MOST_DELAY_NS,
    MOST_JITTER_NS,
    MOST_RATE_BPS,
    TCA_OPTIONS,
    TICK_NS,
    in_force,
    netem_of,
    netem_options,
    overtakes,
    parse_netem,
    police_action,
    policer_of,
    second_netem_of,
    wrong_direction,
)
from testbed.links.netem.rtnetlink import attribute, nested, parse

PLAIN = Direction(one_way_delay_ns=40_000_000, rate_bps=100_000_000, queue_bytes=625_000)

directions = st.builds(
    Direction,
    one_way_delay_ns=st.integers(0, 10**10),
    rate_bps=st.integers(LEAST_RATE_BPS, 10**10),
    queue_bytes=st.integers(0, 10**5),
    loss=st.floats(0, 1),
    jitter_ns=st.integers(0, MOST_JITTER_NS),
    reorder=st.booleans(),
    duplicate=st.floats(0, 1),
    corrupt=st.floats(0, 1),
    seed=st.integers(-(2**63), 2**63 - 1),
    bursts=st.none() | st.builds(Bursts, *(st.floats(0, 1) for _ in range(4))),
).map(lambda one: replace(one, jitter_ns=min(one.jitter_ns, one.one_way_delay_ns)))


def admitted(direction: Direction, sizes: list[int], every_ns: float) -> list[int]:
    """Which frames the policer lets pass, by the arithmetic of a token bucket that starts full."""
    policer = policer_of(direction, 1)
    full = policer.burst_ticks * TICK_NS
    tokens = float(full)
    passed = []
    for number, size in enumerate(sizes):
        tokens = min(full, tokens + (every_ns if number else 0))
        cost = size * 1e9 / policer.rate_bytes_per_s
        if tokens >= cost:
            tokens -= cost
            passed.append(number)
    return passed


@given(directions)
def test_what_is_sent_is_what_is_read_back(direction: Direction) -> None:
    for wanted in (netem_of(direction), second_netem_of(direction)):
        assert parse_netem(parse(netem_options(wanted))[TCA_OPTIONS]) == wanted


@given(directions)
def test_jitter_is_either_in_order_with_the_rate_or_in_a_netem_of_its_own(direction: Direction) -> None:
    first, second = netem_of(direction), second_netem_of(direction)
    assert first.latency_ns + second.latency_ns == direction.one_way_delay_ns
    assert first.jitter_ns + second.jitter_ns == direction.jitter_ns
    assert (second.jitter_ns > 0) is overtakes(direction) is (direction.reorder and direction.jitter_ns > 0)
    assert not (first.jitter_ns and second.jitter_ns)
    assert second.rate_bytes_per_s == second.loss == second.duplicate == second.corrupt == 0
    assert second.latency_ns == second.jitter_ns  # so nothing is held for less than nothing


def test_an_option_that_should_be_off_is_seen() -> None:
    options = parse(netem_options(netem_of(PLAIN)))[TCA_OPTIONS]
    assert parse_netem(options) is not None
    changed = bytearray(options)
    struct.pack_into("=I", changed, 4 * 3, 1)  # gap; jitter is in a field of its own, of 64 bits
    assert parse_netem(bytes(changed)) is None


def test_kernel_units() -> None:
    netem, policer = netem_of(PLAIN), policer_of(PLAIN, 7)
    assert (netem.latency_ns, netem.rate_bytes_per_s, netem.loss) == (40_000_000, 12_500_000, 0)
    assert netem_of(replace(PLAIN, loss=1.0)).loss == 2**32 - 1
    assert netem_of(replace(PLAIN, loss=0.01)).loss == round(0.01 * (2**32 - 1))
    doubled = netem_of(replace(PLAIN, duplicate=0.25, corrupt=0.5))
    assert (doubled.duplicate, doubled.corrupt) == (2**30, 2**31)
    assert (policer.number, policer.rate_bytes_per_s) == (7, 12_500_000)
    # The queue and one largest frame, as time at the line's rate.
    assert policer.burst_ticks == -(-(625_000 + FRAME_BYTES) * 80 // TICK_NS)


def test_bursts_become_survival_and_take_other_loss_along() -> None:
    bursts = Bursts(enter=0.25, leave=0.5, loss=0.75, loss_outside=0.0)
    model = netem_of(replace(PLAIN, loss=0.5, bursts=bursts)).gilbert_elliott
    assert model is not None
    assert [part / (2**32 - 1) for part in model] == pytest.approx([0.25, 0.5, 0.125, 0.5])
    assert netem_of(replace(PLAIN, loss=0.5, bursts=bursts)).loss == 0


@given(st.integers(0, 40), st.integers(1, FRAME_BYTES))
def test_a_burst_of_largest_frames_fills_the_queue_to_the_frame(whole: int, rest: int) -> None:
    # One frame is sent at once; what else fits waits.
    queue_bytes = whole * FRAME_BYTES + rest - 1
    direction = replace(PLAIN, queue_bytes=queue_bytes)
    assert admitted(direction, [FRAME_BYTES] * 100, 0) == list(range(whole + 1))


@given(st.integers(60, FRAME_BYTES), st.integers(0, 200_000))
def test_a_burst_of_smaller_frames_fills_the_queue_within_one_largest_frame(size: int, queue_bytes: int) -> None:
    count = queue_bytes // size + FRAME_BYTES // size + 10
    waiting = len(admitted(replace(PLAIN, queue_bytes=queue_bytes), [size] * count, 0)) - 1
    assert queue_bytes // size <= waiting <= (queue_bytes + FRAME_BYTES) // size


def test_a_stream_at_the_lines_rate_is_never_refused() -> None:
    spacing_ns = FRAME_BYTES * 80
    direction = replace(PLAIN, queue_bytes=0)
    assert len(admitted(direction, [FRAME_BYTES] * 1000, spacing_ns)) == 1000
    assert len(admitted(direction, [FRAME_BYTES] * 1000, spacing_ns / 2)) == pytest.approx(500, abs=2)


@given(directions)
def test_the_frame_limit_holds_flight_and_queue(direction: Direction) -> None:
    flight_bytes = direction.rate_bps * direction.one_way_delay_ns / 8e9
    assert netem_of(direction).limit_frames * 60 >= flight_bytes + direction.queue_bytes + FRAME_BYTES


@given(directions)
def test_the_rate_in_force_is_within_a_byte_per_second(direction: Direction) -> None:
    assert abs(in_force(direction).rate_bps - direction.rate_bps) <= 4
    assert in_force(direction).rate_bps == pytest.approx(direction.rate_bps, rel=0.0005)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rate_bps": MOST_RATE_BPS + 8}, "34.3597 Gbit/s, what the kernel's fields hold"),
        ({"rate_bps": LEAST_RATE_BPS - 1}, "what the kernel's fields hold"),
        ({"rate_bps": 0}, "what the kernel's fields hold"),
        ({"one_way_delay_ns": -1}, "delay"),
        ({"one_way_delay_ns": MOST_DELAY_NS + 1}, "delay"),
        ({"queue_bytes": -1}, "queue -1 bytes is below 0"),
        ({"rate_bps": LEAST_RATE_BPS, "queue_bytes": 10**6}, "what the kernel's fields hold at this rate"),
        ({"rate_bps": 10**10, "one_way_delay_ns": 10**12}, "more frames than the kernel counts"),
        ({"loss": 1.5}, "loss 1.5 is not a probability"),
        ({"loss": float("nan")}, "is not a probability"),
        ({"bursts": Bursts(2.0, 0.5)}, "bursts enter 2 is not a probability"),
        ({"one_way_delay_ns": 2**32, "jitter_ns": MOST_JITTER_NS + 1}, "use --links delayline"),
        ({"reorder": True, "jitter_ns": 1, "duplicate": 0.1}, "use --links delayline"),
        ({"seed": 2**63}, "seed"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_line(change: dict[str, object], says: str) -> None:
    wrong = wrong_direction(replace(PLAIN, **change))  # type: ignore[arg-type]
    assert wrong is not None
    assert says in wrong
    assert "\n" not in wrong


def test_the_limits_themselves_are_accepted() -> None:
    assert wrong_direction(PLAIN) is None
    assert wrong_direction(replace(PLAIN, rate_bps=MOST_RATE_BPS)) is None
    assert wrong_direction(replace(PLAIN, rate_bps=LEAST_RATE_BPS, queue_bytes=250_000)) is None
    assert wrong_direction(replace(PLAIN, one_way_delay_ns=0, queue_bytes=0, loss=1.0)) is None
    assert wrong_direction(replace(PLAIN, one_way_delay_ns=2**32, jitter_ns=MOST_JITTER_NS)) is None


def test_a_refusal_names_the_link_and_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    link = Link("a-b", LinkEnd("a", "to-b"), LinkEnd("b", "to-a"), PLAIN, replace(PLAIN, seed=2**63))
    refusal = Netem().refusal([link])
    assert refusal is not None
    assert refusal.startswith("link a-b (b>a): seed")


def test_without_root_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    refusal = Netem().refusal([])
    assert refusal is not None
    assert "sudo" in refusal


def test_attributes_are_padded_and_parsed() -> None:
    data = attribute(1, b"netem\0") + nested(2, attribute(3, b"x"), attribute(4, b""))
    assert len(data) % 4 == 0
    found = parse(data)
    assert found[1] == b"netem\0"
    assert parse(found[2]) == {3: b"x", 4: b""}


def test_a_policer_action_names_its_kind() -> None:
    assert parse(parse(police_action(policer_of(PLAIN, 1)))[1])[1] == b"police\0"
