"""What a link kind is. Read this first; each kind has a module or package of its own beside this one.

A link is two directions with their own delay, rate, queue and loss. A direction behaves as a serial line: a frame
waits in the queue while earlier frames are serialised at the rate, then travels for the one-way delay. Queue means
bytes waiting for serialisation, on top of what is in flight. Rates and bytes are on-wire: Ethernet frames without
preamble and check sequence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

MTU_BYTES = 9000
FRAME_BYTES = MTU_BYTES + 14


@dataclass(frozen=True)
class Bursts:
    """Gilbert–Elliott loss: with each frame the line enters or leaves a burst, then loses by the state it is in.

    All are probabilities per frame. In a burst for enter / (enter + leave) of all frames; a burst lasts 1 / leave
    frames on average.
    """

    enter: float
    leave: float
    loss: float = 1.0
    loss_outside: float = 0.0


@dataclass(frozen=True)
class Direction:
    """The physics of one direction.

    `loss` is the probability that a frame is dropped, on its way: it has used its time on the line. `jitter_ns` adds
    a delay, uniform between minus and plus that, that never lets a frame overtake unless `reorder` is set; it may
    not exceed the delay. `duplicate` and `corrupt` (one bit is flipped) are probabilities. Equal seeds give equal
    patterns over the frames of a direction, counted from the start or from the setting of another seed.
    """

    one_way_delay_ns: int
    rate_bps: int
    queue_bytes: int
    loss: float = 0.0
    seed: int = 0
    jitter_ns: int = 0
    reorder: bool = False
    duplicate: float = 0.0
    corrupt: float = 0.0
    bursts: Bursts | None = None


@dataclass(frozen=True)
class LinkEnd:
    """Where a link ends: the name of a node and of the interface that the kind makes there."""

    node: str
    interface: str


@dataclass(frozen=True)
class Link:
    """One link to build. `forward` carries frames from `a` to `b`, `backward` from `b` to `a`."""

    name: str
    a: LinkEnd
    b: LinkEnd
    forward: Direction
    backward: Direction


@dataclass(frozen=True)
class Lateness:
    """How late frames were released: (upper bound in ns, frames) per bucket, ascending, empty buckets left out."""

    buckets: tuple[tuple[int, int], ...] = ()

    def quantile_ns(self, quantile: float) -> int:
        """The least bound that this share (0 to 1) of the frames did not exceed; 0 if there were none."""
        wanted = quantile * sum(frames for _, frames in self.buckets)
        seen = 0
        for bound_ns, frames in self.buckets:
            seen += frames
            if seen >= wanted:
                return bound_ns
        return 0

    def since(self, earlier: "Lateness") -> "Lateness":
        """What came after an earlier reading of the same direction."""
        before = dict(earlier.buckets)
        left = ((bound_ns, frames - before.get(bound_ns, 0)) for bound_ns, frames in self.buckets)
        return Lateness(tuple((bound_ns, frames) for bound_ns, frames in left if frames))


@dataclass(frozen=True)
class DirectionCounters:
    """What one direction really did, since the link was built; bytes are on-wire bytes.

    Every frame is accounted for: in + duplicated = out + dropped_* + on their way. `dropped_other` is never physics
    but a machine that could not keep up (or a frame longer than the MTU allows): such a measurement is not to be
    trusted. Some of these frames were never seen, so `bytes_in` does not have them. What a kind cannot know is None.
    """

    frames_in: int
    bytes_in: int
    frames_out: int
    bytes_out: int
    dropped_queue: int
    dropped_loss: int
    dropped_other: int
    queue_high_water_bytes: int | None
    worst_lateness_ns: int | None
    dropped_down: int = 0
    duplicated: int = 0
    corrupted: int | None = 0
    reordered: int | None = 0
    lateness: Lateness = Lateness()


class LinkError(Exception):
    """Links cannot have the physics that was asked for; the message is one line and names the way out."""


class RunningLinks(Protocol):
    """Links in operation. Nodes name a direction: (sending node, receiving node)."""

    warnings: Sequence[str]  # what this machine did not grant, and what that costs

    def counters(self) -> Mapping[tuple[str, str], DirectionCounters]:
        """Counters by (sending node, receiving node)."""
        ...

    def directions(self) -> Mapping[tuple[str, str], Direction]:
        """The physics in force, as it was read back, by (sending node, receiving node)."""
        ...

    def change(self, sender: str, receiver: str, direction: Direction) -> None:
        """Change one direction; frames on their way are neither lost nor moved.

        Chance goes on where it was unless the seed changes. Raises LinkError, with nothing changed.
        """
        ...

    def set_up(self, a: str, b: str, up: bool) -> None:
        """Take the link between two nodes down (no carrier at both ends, what is on its way is lost), or up again."""
        ...

    def close(self) -> None:
        """End the emulation and remove its interfaces. Safe to call twice."""
        ...


class LinkKind(Protocol):
    """A way to emulate links."""

    name: str

    def refusal(self, links: Sequence[Link]) -> str | None:
        """Why this machine, or this kind, cannot have these links: one line with the way out; None if it can.

        Changes nothing: it is asked before anything is built.
        """
        ...

    def build(self, links: Sequence[Link], namespaces: Mapping[str, int], run_id: str) -> RunningLinks:
        """Make and start all links: their interfaces exist and are up in the nodes' namespaces on return, offloads off.

        `namespaces` maps each node to a process id that lives in its network namespace. Raises LinkError, with
        nothing left behind.
        """
        ...


def default_queue_bytes(rate_bps: int) -> int:
    """The queue where none is asked for: 50 ms of line rate, at least 64 frames."""
    return max(rate_bps * 50 // 1000 // 8, 64 * FRAME_BYTES)
