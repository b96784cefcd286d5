"""How much memory a direction needs, and what this kind refuses."""

import math
import os
from collections.abc import Sequence

from testbed.links.checks import wrong_numbers
from testbed.links.interface import FRAME_BYTES, Direction, Link

# The highest rate at which one direction, alone, was measured to lose nothing on two cores: see docs/links.md.
MOST_RATE_BPS = 10_000_000_000
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


def ring_slots(direction: Direction, generous: bool) -> int:
    """Slots of the packet ring. Generous: for all that can be in flight and in the queue, in full frames.

    Otherwise for the flight alone: what the queue adds then moves out of the ring, which costs a copy.
    """
    in_flight = direction.rate_bps * (direction.one_way_delay_ns + direction.jitter_ns) // 8_000_000_000
    kept = in_flight + direction.queue_bytes if generous else in_flight
    return math.ceil(kept / FRAME_BYTES) + SPARE_SLOTS


def rings_can_be_generous(links: Sequence[Link]) -> bool:
    """Whether generous rings take no more than an eighth of the memory that is free."""
    slots = sum(ring_slots(direction, True) for link in links for direction in (link.forward, link.backward))
    return slots * SLOT_BYTES <= available_memory_bytes() // 8


def arena_bytes(direction: Direction) -> int:
    """Address space for frames outside the ring; it becomes memory as it is used."""
    return max(math.ceil(line_bytes(direction) * SMALL_FRAMES_FACTOR * ROOM_TO_GROW), LEAST_ARENA_BYTES)


def memory_bytes(links: Sequence[Link]) -> int:
    """The most memory that the links can use: full rings, and full lines of smallest frames."""
    generous = rings_can_be_generous(links)
    directions = [direction for link in links for direction in (link.forward, link.backward)]
    rings = sum(ring_slots(direction, generous) * SLOT_BYTES for direction in directions)
    return rings + sum(math.ceil(line_bytes(direction) * SMALL_FRAMES_FACTOR) for direction in directions)


def available_memory_bytes() -> int:
    """Memory that this machine could still give."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def wrong_direction(direction: Direction) -> str | None:
    """The first thing about this direction that cannot be had, or None."""
    if not 0 <= direction.one_way_delay_ns <= MOST_DELAY_NS:
        return f"one-way delay {direction.one_way_delay_ns} ns is not within 0 and {MOST_DELAY_NS} ns (an hour)"
    if not 1 <= direction.rate_bps <= MOST_RATE_BPS:
        return (
            f"rate {direction.rate_bps / 1e9:g} Gbit/s is not within 1 bit/s and {MOST_RATE_BPS / 1e9:g} Gbit/s, "
            "the most that delayline was measured to carry; lower the rate scale"
        )
    return wrong_numbers(direction)
