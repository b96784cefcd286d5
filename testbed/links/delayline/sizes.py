"""How much memory a direction needs, and what this kind refuses."""

import math
import os
from collections.abc import Sequence

from testbed.links.interface import FRAME_BYTES, Direction, Link

# The highest rate at which one direction, alone, was measured to lose nothing on two cores: see docs/links.md.
MOST_RATE_BPS = 4_000_000_000
MOST_DELAY_NS = 3_600_000_000_000

SLOT_BYTES = 65536 // 7
# Slots for frames that arrive between two looks at the ring, and while it moves frames elsewhere.
SPARE_SLOTS = 256
# What is late for want of processor time still needs a place: this much line rate.
OVERLOAD_NS = 50_000_000
# A running link may be changed as long as no more than this multiple is on its way; unused, it takes no memory.
ROOM_TO_GROW = 4
LEAST_ARENA_BYTES = 1 << 23
# Bookkeeping of the smallest frames.
SMALL_FRAMES_FACTOR = 1.5


def line_bytes(direction: Direction) -> int:
    """Bytes that can be on their way at once."""
    flight_ns = direction.one_way_delay_ns + direction.jitter_ns + OVERLOAD_NS
    return direction.rate_bps * flight_ns // 8_000_000_000 + direction.queue_bytes


def ring_slots(direction: Direction) -> int:
    """Slots of the packet ring: what is in flight in full frames. What the queue adds moves out of the ring."""
    in_flight = direction.rate_bps * direction.one_way_delay_ns / 8e9
    return math.ceil(in_flight / FRAME_BYTES) + SPARE_SLOTS


def arena_bytes(direction: Direction) -> int:
    """Address space for frames outside the ring; it becomes memory as it is used."""
    return max(math.ceil(line_bytes(direction) * SMALL_FRAMES_FACTOR * ROOM_TO_GROW), LEAST_ARENA_BYTES)


def memory_bytes(links: Sequence[Link]) -> int:
    """The most memory that the links can use: full rings, and full lines of smallest frames."""
    directions = [direction for link in links for direction in (link.forward, link.backward)]
    rings = sum(ring_slots(direction) * SLOT_BYTES for direction in directions)
    return rings + sum(math.ceil(line_bytes(direction) * SMALL_FRAMES_FACTOR) for direction in directions)


def available_memory_bytes() -> int:
    """Memory that this machine could still give."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def wrong_link(links: Sequence[Link]) -> str | None:
    """The first thing about these links that cannot be had, or None."""
    pairs: dict[frozenset[str], str] = {}
    for link in links:
        ends = frozenset((link.a.node, link.b.node))
        if len(ends) == 1:
            return f"link {link.name}: both ends are at node {link.a.node}; a link joins two nodes"
        if ends in pairs:
            return f"link {link.name}: {pairs[ends]} joins the same two nodes; merge them into one"
        pairs[ends] = link.name
        for end in (link.a, link.b):
            if not 0 < len(end.interface.encode()) <= 15:
                return f"link {link.name}: interface name {end.interface!r} must have 1 to 15 bytes"
        for direction, arrow in (
            (link.forward, f"{link.a.node}>{link.b.node}"),
            (link.backward, f"{link.b.node}>{link.a.node}"),
        ):
            wrong = wrong_direction(direction)
            if wrong:
                return f"link {link.name} ({arrow}): {wrong}"
    return None


def wrong_direction(direction: Direction) -> str | None:
    """The first thing about this direction that cannot be had, or None."""
    if not 0 <= direction.one_way_delay_ns <= MOST_DELAY_NS:
        return f"one-way delay {direction.one_way_delay_ns} ns is not within 0 and {MOST_DELAY_NS} ns (an hour)"
    if not 1 <= direction.rate_bps <= MOST_RATE_BPS:
        return (
            f"rate {direction.rate_bps / 1e9:g} Gbit/s is not within 1 bit/s and {MOST_RATE_BPS / 1e9:g} Gbit/s, "
            "the most that delayline was measured to carry; lower the rate scale"
        )
    if direction.queue_bytes < 0:
        return f"queue {direction.queue_bytes} bytes is below 0"
    if not 0 <= direction.jitter_ns <= direction.one_way_delay_ns:
        return f"jitter {direction.jitter_ns} ns is not within 0 and the delay, {direction.one_way_delay_ns} ns"
    if not -(2**63) <= direction.seed < 2**63:
        return f"seed {direction.seed} does not fit 64 bits"
    for name, probability in _probabilities(direction).items():
        if not 0 <= probability <= 1:
            return f"{name} {probability:g} is not a probability within 0 and 1"
    return None


def _probabilities(direction: Direction) -> dict[str, float]:
    probabilities = {"loss": direction.loss, "duplicate": direction.duplicate, "corrupt": direction.corrupt}
    if direction.bursts is not None:
        bursts = direction.bursts
        probabilities |= {"bursts enter": bursts.enter, "bursts leave": bursts.leave}
        probabilities |= {"bursts loss": bursts.loss, "bursts loss outside": bursts.loss_outside}
    return probabilities
