"""The results of an analysis, in plain records."""

from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass
class Recovery:
    """What was asked for again of one island's edge, or of another island, and what came of it.

    `requests` left who asks, `requests_received` came to who is asked; `wanted`: packets that they ask for, each
    counted once. `repairs_sent` left who is asked, `repairs` came to who asks: of one packet there may be several. Of
    what was wanted `repaired` came and `unrepaired` did not; `gone` ones the edge has said not to have any more.
    `latencies_ms` are from the first request to the first repair, ascending.
    """

    requests: int = 0
    requests_received: int = 0
    wanted: int = 0
    repairs_sent: int = 0
    repairs: int = 0
    repaired: int = 0
    unrepaired: int = 0
    gone: int = 0
    latencies_ms: list[float] = field(default_factory=list)

    def add(self, other: "Recovery") -> None:
        """Count what another one counts as well."""
        for each in fields(self):
            if each.name != "latencies_ms":
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        self.latencies_ms = sorted([*self.latencies_ms, *other.latencies_ms])


@dataclass
class Hop:
    """One direction of a link, in frames of all protocols: sent + duplicated + entering = received + lost + altered +
    in_flight. `entering` were sent before the captures began, `in_flight` were on their way when they ended; `altered`
    arrived as something else than what was sent, so far as the captured bytes show.

    From an edge to its hosts, `recovery` is what these asked it for, and `redundant` packets came to them that had
    something which was there already: hosts drop them whole.
    """

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
    redundant: int | None = None
    recovery: Recovery | None = None

    @property
    def name(self) -> str:
        return f"{self.source}>{self.target}"


@dataclass
class Stream:
    """Contributions, in chunks, of one island to another: sent = delivered + all of `lost` + unexplained.

    `lost` has the place of each that was not delivered at once: a direction of a link, or a node. `repaired` of these
    came later; `unrepaired` never did. None: the place where that would show was not captured. `recovery`: what the
    receiver's hosts fetched from the source's.
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
    recovery: Recovery = field(default_factory=Recovery)


@dataclass(frozen=True, slots=True)
class LostPacket:
    """A frame that was lost, or altered, on a link; `time_ns` is when it was seen first (wall clock).

    `source` is the contributor id in it, `island` that island's name. None: that is not known, or it is none of ours.
    """

    time_ns: int
    kind: str
    place: str
    island: str | None = None
    source: int | None = None
    round: int | None = None
    shard: int | None = None
    chunk: int | None = None
    number: int | None = None
    bitmap: int | None = None


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
    repair: Recovery
    """All requests and repairs of both kinds."""
    nacks: int
    fetches: int
    repair_times_ns: list[tuple[int, float]]
    """When each packet that was asked for came (wall clock), and its latency in ms."""
    first_fetched: tuple[int, int, int, int] | None
    """A contribution that was fetched: its source's contributor id, round, chunk and shard."""
    lost: list[LostPacket]
    islands: dict[int, str]
    """Names by contributor id, of those that sent."""
    partial_rounds: list[int]
    """Rounds of which the captures lack the beginning or the end; they are in the hops but not in the streams."""
    complete: bool
    unexplained: int
    warnings: list[str]

    @property
    def reconciled(self) -> bool:
        """Whether every packet is accounted for."""
        return self.unexplained == 0
