"""What the kernel is told for one direction, and what it says back: structures of linux/pkt_sched.h and pkt_cls.h.

A direction is two things at the port that sends its frames. A policer admits a frame if the bytes that wait, by the
line's rate, leave room for it in the queue: the drop-tail queue. The queueing discipline `netem` then serialises what
was admitted at the rate, delays it, and loses, doubles or corrupts what chance says. With a rate, netem keeps frames in
order: where they shall overtake each other, a second netem inside the first has the jitter, and no rate.
"""

import math
import struct
from dataclasses import dataclass, replace

from testbed.links.checks import wrong_numbers
from testbed.links.interface import FRAME_BYTES, Bursts, Direction
from testbed.links.netem.rtnetlink import attribute, nested, parse

TCA_KIND, TCA_OPTIONS, TCA_STATS2 = 1, 2, 7

MOST_RATE_BPS = (2**32 - 1) * 8  # a 32-bit field of bytes per second
LEAST_RATE_BPS = 8_000  # rounding to whole bytes per second stays below 0.05 %
MOST_DELAY_NS = 3_600_000_000_000
MOST_JITTER_NS = 2**31 - 1  # the kernel cuts what is above

TICK_NS = 64  # of the traffic control's 32-bit time fields
MOST_QUEUE_NS = (2**32 - 1) * TICK_NS

# No frame that a kernel sends is shorter, so that many fit into bytes at the most.
_SMALLEST_FRAME = 40
# Frames may stay this much longer where processors are busy; they must not be dropped for it.
_OVERLOAD_NS = 1_000_000_000

_NETEM = struct.Struct("=6I")  # latency, limit, loss, gap, duplicate, jitter
_NETEM_REORDER, _NETEM_CORRUPT, _NETEM_LOSS, _NETEM_RATE = 3, 4, 5, 6
_NETEM_LATENCY64, _NETEM_JITTER64, _NETEM_SEED = 10, 11, 14
_RATE = struct.Struct("=IiIi")  # rate, packet overhead, cell size, cell overhead
_LOSS_GILBERT_ELLIOTT = 2
_FOUR = struct.Struct("=4I")
_PROBABILITY_ONE = 2**32 - 1

_ACT_SHOT, _ACT_OK, _ACT_STOLEN = 2, 0, 4
_ACT_KIND, _ACT_OPTIONS, _ACT_STATS = 1, 2, 4
_FIRST_ACTION = 1
_MATCHALL_ACTIONS = 2
# index, action, limit, burst, mtu; cell log, link layer, overhead, cell alignment, mpu, rate; peak rate; counts
_POLICE = struct.Struct("=IiIII BBHhHI 12x 12x")
_POLICE_TBF, _POLICE_RATE = 1, 2
_LARGEST_MTU = 2**31 - 1
_ETHERNET, _CELL_LOG = 1, 8
# The table of transmission times is asked for, but has not been used since Linux 3.8.
_UNUSED_TABLE = b"\0" * 1024
_MIRRED = struct.Struct("=IIiiiiI")  # index, capabilities, action, counts, what to do, interface
_MIRRED_PARAMETERS = 2
_REDIRECT_TO_EGRESS = 1

_STATS_BASIC, _STATS_QUEUE = 1, 3


@dataclass(frozen=True)
class Netem:
    """The options of one netem queueing discipline, in the kernel's units. No seed: the kernel has no such field."""

    latency_ns: int
    jitter_ns: int
    rate_bytes_per_s: int
    limit_frames: int
    loss: int
    gilbert_elliott: tuple[int, int, int, int] | None
    duplicate: int
    corrupt: int
    seed: int | None


@dataclass(frozen=True)
class Policer:
    """The options of one policer: `number` is its own in the namespace, the burst is a time in ticks."""

    number: int
    rate_bytes_per_s: int
    burst_ticks: int


@dataclass(frozen=True)
class Statistics:
    """What a queueing discipline or an action has counted: frames that it let go, that it dropped and that it holds."""

    frames: int
    bytes: int
    drops: int
    held: int


def wrong_direction(direction: Direction) -> str | None:
    """The first thing about this direction that cannot be had, or None."""
    if not 0 <= direction.one_way_delay_ns <= MOST_DELAY_NS:
        return f"one-way delay {direction.one_way_delay_ns} ns is not within 0 and {MOST_DELAY_NS} ns (an hour)"
    if not LEAST_RATE_BPS <= direction.rate_bps <= MOST_RATE_BPS:
        return (
            f"rate {direction.rate_bps / 1e9:g} Gbit/s is not within {LEAST_RATE_BPS / 1e9:g} and "
            f"{MOST_RATE_BPS / 1e9:g} Gbit/s, what the kernel's fields hold; change the rate scale"
        )
    wrong = wrong_numbers(direction)
    if wrong:
        return wrong
    if _queue_ns(direction) > MOST_QUEUE_NS:
        most = direction.rate_bps * (MOST_QUEUE_NS // 1000) // 8_000_000 - FRAME_BYTES
        return f"queue {direction.queue_bytes} bytes is above {most}, what the kernel's fields hold at this rate"
    if _limit_frames(direction) >= 2**32:
        return "delay, rate and queue together can hold more frames than the kernel counts; lower one of them"
    if direction.jitter_ns > MOST_JITTER_NS:
        return f"jitter {direction.jitter_ns} ns is above {MOST_JITTER_NS}, the kernel's most; use --links delayline"
    if overtakes(direction) and direction.duplicate:
        return "reordering together with duplication is not emulated by links of kind netem; use --links delayline"
    return None


def overtakes(direction: Direction) -> bool:
    """Whether frames of this direction may overtake each other."""
    return direction.reorder and direction.jitter_ns > 0


def netem_of(direction: Direction) -> Netem:
    """The options that give a direction its rate, delay and chance; jitter as well if it keeps frames in order."""
    early_ns, jitter_ns = (direction.jitter_ns, 0) if overtakes(direction) else (0, direction.jitter_ns)
    return Netem(
        latency_ns=direction.one_way_delay_ns - early_ns,
        jitter_ns=jitter_ns,
        rate_bytes_per_s=_bytes_per_s(direction),
        limit_frames=_limit_frames(direction),
        loss=0 if direction.bursts else _fraction(direction.loss),
        gilbert_elliott=_gilbert_elliott(direction.loss, direction.bursts) if direction.bursts else None,
        duplicate=_fraction(direction.duplicate),
        corrupt=_fraction(direction.corrupt),
        seed=direction.seed % 2**64,
    )


def second_netem_of(direction: Direction) -> Netem:
    """The options of the netem inside: it holds each frame for 0 to twice the jitter, or for nothing."""
    jitter_ns = direction.jitter_ns if overtakes(direction) else 0
    return Netem(
        latency_ns=jitter_ns,
        jitter_ns=jitter_ns,
        rate_bytes_per_s=0,
        limit_frames=_limit_frames(direction),
        loss=0,
        gilbert_elliott=None,
        duplicate=0,
        corrupt=0,
        seed=(direction.seed + 1) % 2**64,
    )


def policer_of(direction: Direction, number: int) -> Policer:
    """The options that give a direction its queue.

    A bucket of so many bytes, refilled at the line's rate, has at any time as much in it as is free in a queue that
    empties at that rate. The bucket also counts the frame that is being sent, which no longer waits: it gets the room
    of one largest frame for that. So the bound is exact for largest frames; of smaller ones, up to one largest
    frame's bytes more can wait.
    """
    return Policer(number, _bytes_per_s(direction), math.ceil(_queue_ns(direction) / TICK_NS))


def in_force(direction: Direction) -> Direction:
    """What a direction becomes, once the kernel has confirmed it: its rate is of whole bytes per second."""
    return replace(direction, rate_bps=_bytes_per_s(direction) * 8)


def netem_options(netem: Netem) -> bytes:
    """Every option, also those that are off: what is not named would stay as it was, or not, option by option."""
    ticks = min(netem.latency_ns // TICK_NS, 2**32 - 1)
    attributes = [
        attribute(_NETEM_REORDER, struct.pack("=2I", 0, 0)),
        attribute(_NETEM_CORRUPT, struct.pack("=2I", netem.corrupt, 0)),
        attribute(_NETEM_RATE, _RATE.pack(netem.rate_bytes_per_s, 0, 0, 0)),
        attribute(_NETEM_LATENCY64, struct.pack("=q", netem.latency_ns)),
        attribute(_NETEM_JITTER64, struct.pack("=q", netem.jitter_ns)),
    ]
    if netem.gilbert_elliott:
        attributes.append(nested(_NETEM_LOSS, attribute(_LOSS_GILBERT_ELLIOTT, _FOUR.pack(*netem.gilbert_elliott))))
    if netem.seed is not None:
        attributes.append(attribute(_NETEM_SEED, struct.pack("=Q", netem.seed)))
    return attribute(
        TCA_OPTIONS, _NETEM.pack(ticks, netem.limit_frames, netem.loss, 0, netem.duplicate, 0) + b"".join(attributes)
    )


def parse_netem(options: bytes) -> Netem | None:
    """The options that the kernel reports; None if any that should be off is on."""
    _, limit, loss, gap, duplicate, _ = _NETEM.unpack_from(options)
    found = parse(options[_NETEM.size :])
    corrupt, correlation = struct.unpack("=2I", found.get(_NETEM_CORRUPT, bytes(8)))
    off = [gap, correlation, *struct.unpack("=2I", found.get(_NETEM_REORDER, bytes(8)))]
    rate, *overheads = _RATE.unpack(found.get(_NETEM_RATE, bytes(_RATE.size)))
    if any(off) or any(overheads):
        return None
    model = parse(found.get(_NETEM_LOSS, b"")).get(_LOSS_GILBERT_ELLIOTT)
    seed = found.get(_NETEM_SEED)
    return Netem(
        latency_ns=struct.unpack("=q", found.get(_NETEM_LATENCY64, bytes(8)))[0],
        jitter_ns=struct.unpack("=q", found.get(_NETEM_JITTER64, bytes(8)))[0],
        rate_bytes_per_s=rate,
        limit_frames=limit,
        loss=loss,
        gilbert_elliott=_FOUR.unpack(model) if model else None,
        duplicate=duplicate,
        corrupt=corrupt,
        seed=struct.unpack("=Q", seed)[0] if seed else None,
    )


def police_action(policer: Policer) -> bytes:
    """The action that drops what exceeds the bucket and lets all else pass, as the first of its list."""
    parameters = _POLICE.pack(
        *(policer.number, _ACT_SHOT, 0, policer.burst_ticks, _LARGEST_MTU),
        *(_CELL_LOG, _ETHERNET, 0, 0, 0, policer.rate_bytes_per_s),
    )
    options = nested(_ACT_OPTIONS, attribute(_POLICE_TBF, parameters), attribute(_POLICE_RATE, _UNUSED_TABLE))
    return nested(_FIRST_ACTION, attribute(_ACT_KIND, b"police\0"), options)


def redirect_action(interface: int) -> bytes:
    """The action that sends a frame out of another interface, as the first of its list."""
    parameters = _MIRRED.pack(0, 0, _ACT_STOLEN, 0, 0, _REDIRECT_TO_EGRESS, interface)
    options = nested(_ACT_OPTIONS, attribute(_MIRRED_PARAMETERS, parameters))
    return nested(_FIRST_ACTION, attribute(_ACT_KIND, b"mirred\0"), options)


def every_frame(action: bytes) -> bytes:
    """The options of a filter `matchall` with this action."""
    return nested(TCA_OPTIONS, nested(_MATCHALL_ACTIONS, action))


def parse_policer(filter_options: bytes) -> tuple[Policer, Statistics]:
    """The policer of a filter, as the kernel reports it. Raises KeyError or struct.error if it is something else."""
    action = parse(parse(parse(filter_options)[_MATCHALL_ACTIONS])[_FIRST_ACTION])
    parameters = parse(action[_ACT_OPTIONS])[_POLICE_TBF]
    number, exceeding, _, burst, _, *_, rate = _POLICE.unpack(parameters)
    if exceeding != _ACT_SHOT:
        raise KeyError("the action lets frames pass that exceed the bucket")
    return Policer(number, rate, burst), statistics(action[_ACT_STATS])


def parse_redirection(filter_options: bytes) -> int:
    """The interface that a filter sends frames out of. Raises KeyError or struct.error if it does something else."""
    action = parse(parse(parse(filter_options)[_MATCHALL_ACTIONS])[_FIRST_ACTION])
    *_, what, interface = _MIRRED.unpack(parse(action[_ACT_OPTIONS])[_MIRRED_PARAMETERS])
    if what != _REDIRECT_TO_EGRESS:
        raise KeyError("the action does not redirect")
    return int(interface)


def statistics(data: bytes) -> Statistics:
    """The counters among an object's statistics."""
    found = parse(data)
    sent_bytes, frames = struct.unpack_from("=QI", found[_STATS_BASIC])
    held, _, drops = struct.unpack_from("=3I", found[_STATS_QUEUE])
    return Statistics(frames, sent_bytes, drops, held)


def _bytes_per_s(direction: Direction) -> int:
    return round(direction.rate_bps / 8)


def _queue_ns(direction: Direction) -> float:
    return (direction.queue_bytes + FRAME_BYTES) * 1e9 / _bytes_per_s(direction)


def _limit_frames(direction: Direction) -> int:
    """Frames on their way at the most, of the smallest: the policer's bound in bytes is reached long before this."""
    flight_ns = direction.one_way_delay_ns + direction.jitter_ns + _OVERLOAD_NS
    on_their_way = direction.rate_bps * flight_ns // 8_000_000_000 + direction.queue_bytes + FRAME_BYTES
    return on_their_way // _SMALLEST_FRAME + 1


def _gilbert_elliott(loss: float, bursts: Bursts) -> tuple[int, int, int, int]:
    """Into a burst, out of it, *survival* in it, loss outside; loss in addition happens in either state."""
    inside = 1 - (1 - loss) * (1 - bursts.loss)
    outside = 1 - (1 - loss) * (1 - bursts.loss_outside)
    return _fraction(bursts.enter), _fraction(bursts.leave), _fraction(1 - inside), _fraction(outside)


def _fraction(probability: float) -> int:
    return round(probability * _PROBABILITY_ONE)
