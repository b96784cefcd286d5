"""What directions of links really do: delay, loss and order at light load, rate at saturation."""

import gc
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from testbed.links.interface import FRAME_BYTES, Direction
from testbed.verify.ports import SMALLEST_FRAME, Arrival, Frames, Port, Ports

# Above everything that is not the testbed's own, below the links.
_PRIORITY = 2
_SETTLE_NS = 30_000_000
_LEAST_PROBES = 20
_LEAST_BURST_FRAMES, _MOST_BURST_FRAMES = 24, 512
# A queue that does not hold the burst is kept full instead: frames come faster than the rate by this.
_OVERDRIVE = 1.25
_FRAMES_IN_QUEUE = 8
_STRETCHES = 12
# A sender that takes longer than this share of the time on the line may be what set the pace.
_SENDER_SHARE = 0.97
# With less queue a line cannot be kept busy from outside.
LEAST_QUEUE_BYTES = _FRAMES_IN_QUEUE * SMALLEST_FRAME


@dataclass(frozen=True)
class Effort:
    """How much is measured per direction: probes and how far apart; bursts, how long and how far apart."""

    probes: int
    interval_ns: int
    bursts: int
    burst_ns: int
    spacing_ns: int


FULL = Effort(probes=1000, interval_ns=3_000_000, bursts=3, burst_ns=50_000_000, spacing_ns=10_000_000)
QUICK = Effort(probes=20, interval_ns=8_000_000, bursts=1, burst_ns=12_000_000, spacing_ns=5_000_000)


@dataclass(frozen=True)
class LightLoad:
    """Single small frames: all one-way times in ns, in order of sending, and what became of the others."""

    sent: int
    one_way_ns: tuple[int, ...]
    lost: int
    duplicated: int
    corrupted: int
    reordered: int


@dataclass(frozen=True)
class Saturation:
    """A direction with more to carry than it can: its rate, or why that could not be measured."""

    rate_bps: float | None
    burst_ns: int
    frames: int
    reason: str = ""


def serialisation_ns(size: int, rate_bps: float) -> float:
    """How long a frame of `size` bytes takes to leave the sender."""
    return size * 8e9 / rate_bps


@contextmanager
def undisturbed() -> Iterator[None]:
    """With real-time priority, if this process may, and without garbage collection."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    with suppress(PermissionError):  # late probes then show as long delays, not as wrong medians
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        os.sched_setscheduler(0, *before)


def measure_light_load(ports: Ports, directions: Sequence[Direction], effort: Effort) -> list[LightLoad]:
    """Send single frames in all directions at once, so far apart that they do not wait for each other."""
    counts, times, whose = [], [], []
    for index, direction in enumerate(directions):
        interval_ns = _probe_interval_ns(direction, effort)
        # A slow line gets fewer probes in the same time.
        count = min(effort.probes, max(_LEAST_PROBES, effort.probes * effort.interval_ns // interval_ns))
        counts.append(count)
        times.append(np.arange(count) * interval_ns)
        whose.append(np.full(count, index))
    all_times, all_whose = np.concatenate(times), np.concatenate(whose)
    order = np.argsort(all_times, kind="stable")
    schedule = zip(all_times[order].tolist(), all_whose[order].tolist(), strict=True)
    senders = [ports.of(index)[0] for index in range(len(directions))]
    numbers = [0] * len(directions)
    with undisturbed():
        began_ns = time.monotonic_ns()
        for due_ns, index in schedule:
            _sleep_until(began_ns + due_ns)
            senders[index].send(numbers[index])
            numbers[index] += 1
    _await_last(directions, [SMALLEST_FRAME] * len(directions))
    return [_light_load(count, *ports.of(index)) for index, count in enumerate(counts)]


def measure_saturation(ports: Ports, directions: Sequence[Direction], effort: Effort) -> list[Saturation]:
    """Send bursts in all directions, one after another; several times."""
    bursts = [_plan_burst(direction, effort.burst_ns) for direction in directions]
    frames = [ports.of(index)[0].prepare(burst.frames, burst.size) for index, burst in enumerate(bursts)]
    found: list[list[Saturation]] = [[] for _ in directions]
    for _ in range(effort.bursts):
        took_ns = []
        with undisturbed():
            began_ns = time.monotonic_ns()
            for index, burst in enumerate(bursts):
                _sleep_until(began_ns + index * effort.spacing_ns)
                took_ns.append(_send_burst(frames[index], burst) if burst.frames else 0)
        _await_last(directions, [burst.size * burst.frames for burst in bursts])
        for index, (burst, direction) in enumerate(zip(bursts, directions, strict=True)):
            sender, receiver = ports.of(index)
            found[index].append(_saturation(receiver.received_from(sender), burst, direction, took_ns[index]))
    return [_settle(several, burst.fits) for several, burst in zip(found, bursts, strict=True)]


def _probe_interval_ns(direction: Direction, effort: Effort) -> int:
    alone_ns = 1.5 * serialisation_ns(SMALLEST_FRAME, direction.rate_bps)
    # Where order is kept a frame waits for one before it that was delayed more.
    jitter_ns = 0 if direction.reorder else 2 * direction.jitter_ns
    return round(max(effort.interval_ns, alone_ns, jitter_ns))


def _light_load(sent: int, sender: Port, receiver: Port) -> LightLoad:
    arrivals = receiver.received_from(sender)
    corrupted, receiver.corrupted = receiver.corrupted, 0
    times_ns: dict[int, int] = {}
    duplicated = reordered = 0
    newest = -1
    for arrival in arrivals:
        if arrival.number in times_ns:
            duplicated += 1
            continue
        reordered += arrival.number < newest
        newest = max(newest, arrival.number)
        times_ns[arrival.number] = arrival.arrived_ns - arrival.sent_ns
    return LightLoad(
        sent=sent,
        one_way_ns=tuple(times_ns[number] for number in sorted(times_ns)),
        lost=max(sent - len(times_ns) - corrupted, 0),
        duplicated=duplicated,
        corrupted=corrupted,
        reordered=reordered,
    )


@dataclass(frozen=True)
class _Burst:
    """`frames` of `size` bytes, in batches that the queue holds, a batch every `every_ns`."""

    size: int
    frames: int
    batch: int
    every_ns: float

    @property
    def fits(self) -> bool:
        return self.batch == self.frames


def _plan_burst(direction: Direction, burst_ns: int) -> _Burst:
    line_bytes = direction.rate_bps * burst_ns / 8e9
    size = int(min(FRAME_BYTES, max(line_bytes / _LEAST_BURST_FRAMES, SMALLEST_FRAME)))
    frames = int(min(max(line_bytes / size, _LEAST_BURST_FRAMES), _MOST_BURST_FRAMES))
    if size * (frames - 1) <= direction.queue_bytes:
        return _Burst(size, frames, frames, 0.0)
    if direction.queue_bytes < LEAST_QUEUE_BYTES:
        return _Burst(SMALLEST_FRAME, 0, 0, 0.0)
    size = min(size, direction.queue_bytes // _FRAMES_IN_QUEUE)
    batch = direction.queue_bytes // size
    frames = max(int(min(line_bytes / size, 8 * _MOST_BURST_FRAMES) * _OVERDRIVE) // batch, 3) * batch
    return _Burst(size, frames, batch, serialisation_ns(batch * size, direction.rate_bps) / _OVERDRIVE)


def _send_burst(frames: Frames, burst: _Burst) -> int:
    """Returns how long sending took, in ns."""
    began_ns = time.monotonic_ns()
    due_ns: float = began_ns
    for first in range(0, burst.frames, burst.batch):
        # Not by sleeping: a queue so short would run empty while this process is woken up.
        while time.monotonic_ns() < due_ns:
            pass
        due_ns = max(due_ns, time.monotonic_ns()) + burst.every_ns
        frames.send(first, first + burst.batch)
    return time.monotonic_ns() - began_ns


def _saturation(arrivals: Sequence[Arrival], burst: _Burst, direction: Direction, took_ns: int) -> Saturation:
    if not burst.frames:
        return Saturation(None, 0, 0, f"a queue of {direction.queue_bytes} bytes holds too few frames to keep it busy")
    if len(arrivals) < 3:
        return Saturation(None, 0, len(arrivals), f"of {burst.frames} frames of a burst {len(arrivals)} arrived")
    stamps_ns = np.array([arrival.arrived_ns - arrivals[0].arrived_ns for arrival in arrivals], float)
    if burst.fits:
        # Lost frames have used their time on the line, so that numbers count, not arrivals.
        places = np.array([arrival.number for arrival in arrivals], float)
        per_frame_ns = float(np.polyfit(places, stamps_ns, 1)[0])
    else:
        # A stall of the sender leaves a gap in one stretch, not in most of them.
        places = np.arange(len(arrivals)) / (1 - direction.loss)
        ends = np.linspace(0, len(arrivals) - 1, min(_STRETCHES, len(arrivals) - 1) + 1).astype(int)
        per_frame_ns = float(np.median(np.diff(stamps_ns[ends]) / np.diff(places[ends])))
    spent_ns = round(float(places[-1] - places[0]) * per_frame_ns)
    if per_frame_ns <= 0:
        return Saturation(None, spent_ns, len(arrivals), "frames of a burst arrived all at once, or out of order")
    if burst.fits and took_ns > _SENDER_SHARE * spent_ns:
        return Saturation(None, spent_ns, len(arrivals), "this machine sends no faster than the link should carry")
    return Saturation(burst.size * 8e9 / per_frame_ns, spent_ns, len(arrivals))


def _settle(several: Sequence[Saturation], fits: bool) -> Saturation:
    """The median of several bursts; the fastest where the sender had to keep up, since its stalls only slow it down."""
    measured = sorted((one for one in several if one.rate_bps), key=lambda one: one.rate_bps or 0.0)
    if not measured:
        return several[0]
    return measured[len(measured) // 2] if fits else measured[-1]


def _await_last(directions: Sequence[Direction], sent_bytes: Sequence[int]) -> None:
    longest_ns = 0.0
    for direction, size in zip(directions, sent_bytes, strict=True):
        on_line_ns = serialisation_ns(min(size, direction.queue_bytes + FRAME_BYTES), direction.rate_bps)
        longest_ns = max(longest_ns, direction.one_way_delay_ns + direction.jitter_ns + on_line_ns)
    time.sleep((longest_ns + _SETTLE_NS) / 1e9)


def _sleep_until(due_ns: int) -> None:
    left_ns = due_ns - time.monotonic_ns()
    if left_ns > 20_000:
        time.sleep(left_ns / 1e9)
