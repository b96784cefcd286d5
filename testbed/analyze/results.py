"""The results of an analysis, in plain records."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Hop:
    """One direction of a link, in frames of all protocols: sent + duplicated + entering = received + lost + altered +
    in_flight. `entering` were sent before the captures began, `in_flight` were on their way when they ended; `altered`
    arrived as something else than what was sent, so far as the captured bytes show."""

    link: str
    kind: str
    source: str
    target: str
    sent: int = 0
    received: int = 0
    lost: int = 0
    duplicated: int = 0
    altered: int = 0
    reordered: int = 0
    in_flight: int = 0
    entering: int = 0
    unexplained: int = 0

    @property
    def name(self) -> str:
        return f"{self.source}>{self.target}"


@dataclass
class Stream:
    """Contributions, in chunks, of one island to another: sent = delivered + all of `lost` + unexplained.

    `lost` has the place of each that was not delivered at once: a direction of a link, or a node. `repaired` of these
    came later; `unrepaired` never did. None: the place where that would show was not captured.
    """

    source: str
    receiver: str
    sent: int = 0
    arrived: int = 0
    delivered: int | None = None
    repaired: int | None = None
    unrepaired: int | None = None
    duplicates: int = 0
    reordered: int = 0
    unexplained: int = 0
    lost: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class LostPacket:
    """A packet that was lost, or altered, on a link or in a node; `time_ns` is when it was seen first (wall clock)."""

    time_ns: int
    kind: str
    source: int
    round: int
    shard: int
    chunk: int
    number: int
    bitmap: int
    place: str


@dataclass
class Repair:
    """`requests`: packets that were asked for, each counted once; `repairs`: packets that came again in answer."""

    nacks: int = 0
    fetches: int = 0
    requests: int = 0
    repairs: int = 0
    repaired: int = 0
    gone: int = 0
    unrepaired: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    times_ns: list[tuple[int, float]] = field(default_factory=list)
    """When a repair arrived (wall clock), and its latency in ms."""


@dataclass(frozen=True)
class Analysis:
    """All of it. `complete`: the captures say that they have every frame; else `warnings` says what is missing."""

    files: list[str]
    frames: int
    packets: Counter[str]
    start_ns: int
    end_ns: int
    hops: list[Hop]
    streams: list[Stream]
    repair: Repair
    lost: list[LostPacket]
    partial_rounds: list[int]
    """Rounds of which the captures lack the beginning or the end; they are in the hops but not in the streams."""
    complete: bool
    unexplained: int
    warnings: list[str]

    @property
    def reconciled(self) -> bool:
        """Whether every packet is accounted for."""
        return self.unexplained == 0
