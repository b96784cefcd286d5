"""What chance does to frames, and changes while frames are on their way."""

import random
import statistics
import time
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from conftest import Bench
from link_probes import LARGEST, SMALLEST, Port, delays_ns, direction, left, link, send_in_thread, settled

from testbed.links.interface import Bursts, LinkError

CLOCK_NS, MEDIAN_NS = 20_000, 200_000


def ports(bench: Bench) -> tuple[Port, Port]:
    return bench.port("a", "b"), bench.port("b", "a")


def carrier(bench: Bench, node: str, interface: str, wanted: bool) -> bool:
    """Whether an interface has, or has no, carrier: the kernel tells of a change a moment after it."""
    deadline = time.monotonic() + 3
    while True:
        shown = bench.node(node).run("ip", "link", "show", interface)
        if ("LOWER_UP" in shown) is wanted and ("NO-CARRIER" in shown) is not wanted:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)


@pytest.mark.parametrize("chance", [{"reorder": True, "corrupt": 0.2}, {"duplicate": 0.1, "corrupt": 0.2}])
def test_what_is_in_force_is_read_back(bench: Bench, chance: dict[str, Any]) -> None:
    forward = direction(
        12.5, 37, 123_456, loss=0.013, seed=-5, jitter_ns=1_000_000, bursts=Bursts(0.01, 0.2, 0.9, 0.001), **chance
    )
    running = bench.build(link("a", "b", forward, direction(1.0)))
    assert running.directions() == {("a", "b"): forward, ("b", "a"): direction(1.0)}
    if bench.takes_seed:
        assert running.warnings == ()
    # The first change takes all chance away, the second brings it back.
    for changed in (replace(forward, bursts=None, loss=0.0, reorder=False, duplicate=0.0, corrupt=0.0), forward):
        running.change("a", "b", changed)
        assert running.directions() == {("a", "b"): changed, ("b", "a"): direction(1.0)}


def test_everything_that_chance_does_at_once_is_read_back(bench: Bench) -> None:
    forward = direction(12.5, 37, jitter_ns=1_000_000, reorder=True, duplicate=0.1, corrupt=0.2, loss=0.01)
    running = bench.build(link("a", "b", forward, direction(1.0)))
    assert running.directions() == {("a", "b"): forward, ("b", "a"): direction(1.0)}


def test_bursts_of_loss(bench: Bench) -> None:
    running = bench.build(link("a", "b", direction(1.0, bursts=Bursts(enter=0.01, leave=0.2)), direction(1.0)))
    a, b = ports(bench)
    count = 10_000
    for number in range(count):
        a.send(number)
    missing = set(range(count)) - {one.number for one in b.receive(0.3)}
    assert settled(running, ("a", "b"), count).dropped_loss == len(missing)
    bursts = sum(number - 1 not in missing for number in missing)
    # A burst begins with enter * leave / (enter + leave) of all frames and lasts 1 / leave frames.
    assert bursts == pytest.approx(count * 0.01 * 0.2 / 0.21, abs=5 * 10)
    assert len(missing) / bursts == pytest.approx(5, abs=5 * 5 / bursts**0.5)


@pytest.mark.parametrize("reorder", [False, True])
def test_jitter_spreads_delays_and_reorders_only_if_asked(bench: Bench, reorder: bool) -> None:
    running = bench.build(link("a", "b", direction(10.0, jitter_ns=4_000_000, reorder=reorder), direction(1.0)))
    a, b = ports(bench)
    sender = send_in_thread(a, 1000, every_s=0.001)
    received = b.receive(0.5, 1000)
    sender.join()
    assert sorted(one.number for one in received) == list(range(1000))
    delays = delays_ns(received)
    assert delays[0] >= 6_000_000 - CLOCK_NS
    counters = settled(running, ("a", "b"), 1000)
    numbers = [one.number for one in received]
    # A frame has overtaken if one that was sent before it comes after it.
    numbers.reverse()
    overtaking = sum(number > least for number, least in zip(numbers, accumulate(numbers, min), strict=True))
    assert counters.reordered in {None, overtaking}
    if reorder:
        assert overtaking > 100
        late_ns = MEDIAN_NS if bench.has_program else 2_000_000  # a kernel's timers on a machine that may be emulated
        assert statistics.median(delays) == pytest.approx(10_000_000, abs=5 * 4_000_000 / 1000**0.5 + late_ns)
        assert statistics.quantiles(delays, n=100)[97] <= 14_000_000 + late_ns
    else:
        assert overtaking == 0


def test_duplicates(bench: Bench) -> None:
    running = bench.build(link("a", "b", direction(1.0, duplicate=0.25), direction(1.0)))
    a, b = ports(bench)
    for number in range(1000):
        a.send(number, 4000 if number % 2 else 100)
    received = [one.number for one in b.receive(0.3)]
    counters = settled(running, ("a", "b"), 1000)
    assert sorted(set(received)) == list(range(1000))
    assert received == sorted(received)
    assert counters.duplicated == len(received) - 1000 == counters.frames_out - 1000
    assert abs(counters.duplicated - 250) <= 5 * (1000 * 0.25 * 0.75) ** 0.5


def test_corruption_flips_one_bit(bench: Bench) -> None:
    running = bench.build(link("a", "b", direction(1.0, corrupt=0.5), direction(1.0)))
    a, b = ports(bench)
    # Of a packet socket's frames above a page netem corrupts only the header (docs/links-netem.md).
    size = LARGEST if bench.has_program else 3000
    filling = random.Random(3).randbytes(size)
    for number in range(400):
        a.send(number, size, filling)
    received = b.receive(0.3)  # a flipped bit in the type hides a frame from this socket: 16 of 24000 bits, or less
    flipped = []
    for one in received:
        difference = int.from_bytes(one.frame[26:], "big") ^ int.from_bytes(filling[: size - 26], "big")
        flipped.append(difference.bit_count())
    assert max(flipped) == 1
    counters = settled(running, ("a", "b"), 400)
    in_header = 5
    assert abs(sum(flipped) - 200) <= 5 * (400 * 0.25) ** 0.5 + in_header
    if counters.corrupted is not None:
        assert 0 <= counters.corrupted - sum(flipped) <= in_header


def test_change_of_delay_loses_and_reorders_nothing(bench: Bench) -> None:
    before = direction(60.0)
    running = bench.build(link("a", "b", before))
    a, b = ports(bench)
    sender = send_in_thread(a, 500, every_s=0.0005)
    for one_way_delay_ms in (5.0, 80.0, 20.0):
        time.sleep(0.05)
        running.change("a", "b", replace(before, one_way_delay_ns=round(one_way_delay_ms * 1e6)))
    sender.join()
    for number in range(500, 550):
        time.sleep(0.002)
        a.send(number)
    received = b.receive(0.5, 550)
    assert [one.number for one in received] == list(range(550))
    first, last = delays_ns(received[:10]), delays_ns(received[-10:])
    assert first[0] >= 60_000_000 - CLOCK_NS
    assert last[0] >= 20_000_000 - CLOCK_NS
    assert statistics.median(last) <= 20_000_000 + MEDIAN_NS


def test_change_of_rate_queue_and_loss(bench: Bench) -> None:
    before = direction(1.0, 10)
    running = bench.build(link("a", "b", before))
    a, b = ports(bench)
    running.change("a", "b", replace(before, rate_bps=100_000_000))
    for number in range(100):
        a.send(number, LARGEST)
    received = b.receive(0.5, 100)
    assert received[-1].received_ns - received[0].received_ns == pytest.approx(99 * 721_120, rel=0.02)
    running.change("a", "b", replace(before, queue_bytes=5 * LARGEST))
    for number in range(50):
        a.send(number, LARGEST)
    assert [one.number for one in b.receive(0.3)] == list(range(6))
    running.change("a", "b", replace(before, loss=1.0))
    a.send(1)
    assert b.receive(0.2) == []
    running.change("a", "b", before)
    a.send(2)
    assert [one.number for one in b.receive(0.3)] == [2]


def test_change_does_not_restart_chance(bench: Bench) -> None:
    """The pattern of loss goes on over a change, and begins anew only with a new seed."""
    if not bench.has_program:
        pytest.skip("netem's chance begins anew with each change, where it can be seeded")
    lossy = direction(1.0, loss=0.5, seed=9)
    running = bench.build(link("a", "b", lossy))
    a, b = ports(bench)

    def burst() -> list[int]:
        for number in range(300):
            a.send(number)
        return [one.number for one in b.receive(0.2)]

    first = burst()
    running.change("a", "b", replace(lossy, one_way_delay_ns=2_000_000))
    second = burst()
    running.change("a", "b", replace(lossy, seed=10))
    running.change("a", "b", lossy)
    assert burst() == first != second


def test_changes_that_cannot_be_are_refused(bench: Bench) -> None:
    running = bench.build(link("a", "b", direction(1.0)))
    in_force = running.directions()
    with pytest.raises(LinkError, match=r"a>b.*loss"):
        running.change("a", "b", direction(1.0, loss=1.5))
    with pytest.raises(LinkError, match=r"a>b.*memory" if bench.has_program else r"a>b.*fields hold"):
        running.change("a", "b", direction(1000.0, 4000 if bench.has_program else 40_000, 1 << 30))
    with pytest.raises(LinkError, match=r"a>b.*jitter"):
        running.change("a", "b", direction(1.0, jitter_ns=2_000_000))
    with pytest.raises(LinkError, match="no link"):
        running.change("a", "c", direction(1.0))
    with pytest.raises(LinkError, match="no link"):
        running.set_up("a", "c", up=False)
    assert running.directions() == in_force


def test_down_takes_carrier_from_both_ends_and_up_brings_it_back(bench: Bench) -> None:
    running = bench.build(link("a", "b", direction(500.0)), link("b", "c", direction(1.0)))
    a, b = ports(bench)
    for number in range(20):
        a.send(number)
    time.sleep(0.03)
    running.set_up("b", "a", up=False)
    assert carrier(bench, "a", "to-b", wanted=False)
    assert carrier(bench, "b", "to-a", wanted=False)
    assert "NO-CARRIER" not in bench.node("b").run("ip", "link", "show", "to-c")
    assert b.receive(0.8) == []
    counters = running.counters()["a", "b"]
    assert (counters.frames_in, counters.dropped_down, left(counters)) == (20, 20, 0)
    running.set_up("a", "b", up=True)
    assert carrier(bench, "a", "to-b", wanted=True)
    assert carrier(bench, "b", "to-a", wanted=True)
    a, b = ports(bench)
    for number in range(20):
        a.send(number, SMALLEST)
        b.send(number, LARGEST)
    assert [one.number for one in b.receive(1.0, 20)] == list(range(20))
    assert [one.number for one in a.receive(1.0, 20)] == list(range(20))


def test_a_receiver_that_is_taken_down_holds_nobody_back(bench: Bench) -> None:
    running = bench.build(link("a", "b", direction(1.0)), link("a", "c", direction(1.0)))
    a, b = ports(bench)
    bench.node("b").run("ip", "link", "set", "to-a", "down")
    for number in range(50):
        a.send(number, LARGEST)
    other, receiver = bench.port("a", "c"), bench.port("c", "a")
    for number in range(50):
        other.send(number)
    delays = delays_ns(receiver.receive(0.3, 50))
    assert len(delays) == 50
    assert statistics.median(delays) <= 1_000_000 + 20 * MEDIAN_NS
    assert left(settled(running, ("a", "b"), 0)) == 0
    bench.node("b").run("ip", "link", "set", "to-a", "up")
    b = bench.port("b", "a")
    a.send(7)
    assert [one.number for one in b.receive(0.3, 1)] == [7]
