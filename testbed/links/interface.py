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
class Direction:
    """The physics of one direction; `loss` is the probability that a frame is dropped."""

    one_way_delay_ns: int
    rate_bps: int
    queue_bytes: int
    loss: float = 0.0
    seed: int = 0


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
class DirectionCounters:
    """What one direction really did, since the link was built; bytes are on-wire bytes."""

    frames_in: int
    bytes_in: int
    frames_out: int
    bytes_out: int
    dropped_queue: int
    dropped_loss: int
    dropped_other: int
    queue_high_water_bytes: int
    worst_lateness_ns: int


class LinkError(Exception):
    """Links cannot have the physics that was asked for; the message is one line and names the way out."""


class RunningLinks(Protocol):
    """Links in operation."""

    def counters(self) -> Mapping[tuple[str, str], DirectionCounters]:
        """Counters by (sending node, receiving node)."""
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
