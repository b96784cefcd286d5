"""A network on paper: three islands in a row, a multicast tree, and a capture of everything that happens in it."""

from dataclasses import dataclass, field
from pathlib import Path

from aggregator.wire.packet import (
    CONTRIBUTION_PORT,
    FLAG_BYPASSED,
    FLAG_RETRANSMITTED,
    REPAIR_PORT,
    RESULT_PORT,
    Header,
    Kind,
    Reason,
)
from testbed.analyze.analysis import analyse
from testbed.analyze.captures import Captures
from testbed.analyze.results import Analysis, Hop, Stream
from tests.unit.capture.frames import Capture, frame, header

ISLANDS = ("nyc", "lon", "fra")
STREAM = 77
MS = 1_000_000
STEP_NS = 100_000  # from one point to the next


def links() -> list[tuple[str, str, str, str]]:
    """(node:interface, node:interface, link, kind)"""
    found = []
    for island in ISLANDS:
        found.append((f"{island}-h1:e0", f"{island}-e:h0", f"{island}-e-{island}-h1", "access"))
        found.append((f"{island}-e:r0", f"{island}:e0", f"{island}-{island}-e", "wire"))
    for a, b in (("nyc", "lon"), ("lon", "fra")):
        found.append((f"{a}:c-{b}", f"{b}:c-{a}", f"{a}-{b}", "core"))
    return found


# From one end of a link to the other: nyc's stream to lon and fra.
UP = [("nyc-h1:e0", "nyc-e:h0"), ("nyc-e:r0", "nyc:e0"), ("nyc:c-lon", "lon:c-nyc")]
TO_LON = [("lon:e0", "lon-e:r0")]
TO_FRA = [("lon:c-fra", "fra:c-lon"), ("fra:e0", "fra-e:r0")]


def place(hop: tuple[str, str]) -> str:
    """A hop by its nodes, as the analysis names it."""
    return ">".join(end.split(":")[0] for end in hop)


def host(island: str) -> str:
    return f"10.1.{ISLANDS.index(island)}.10"


def edge(island: str) -> str:
    return f"10.1.{ISLANDS.index(island)}.2"


@dataclass
class Network:
    """Packets are sent one after the other; what the caller says is lost goes no further."""

    capture: Capture = field(default_factory=Capture)
    now_ns: int = 1000 * MS
    captured: int = 128
    source: str = "10.1.0.10"
    """The address that nyc's host sends contributions from."""
    interfaces: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for a, b, link, kind in links():
            for here, there in ((a, b), (b, a)):
                node, interface = here.split(":")
                comment = f"testbed node={node} interface={interface} link={link} kind={kind} peer={there}"
                self.interfaces[here] = self.capture.interface(here, comment)

    def cross(self, hop: tuple[str, str], data: bytes, copies: int = 1, arriving: bytes | None = None) -> bool:
        """Send a frame over a link; `copies` of it, or of what it becomes, arrive. Returns whether one did."""
        out, inward = hop
        self.capture.add(self.interfaces[out], self.now_ns, data, True, self.captured)
        self.now_ns += STEP_NS
        for _ in range(copies):
            self.capture.add(self.interfaces[inward], self.now_ns, arriving or data, False, self.captured)
        return copies > 0

    def contribute(self, chunk: int, lost: str = "", round_number: int = 0) -> set[str]:
        """Multicast a contribution of nyc; returns whose edges it reached. `lost`: the link (or node) that loses it."""
        packet = header(chunk=chunk, round=round_number)
        data = frame(packet, self.source, "232.1.0.1", CONTRIBUTION_PORT)
        for hop in UP:
            if not self.cross(hop, data, copies=place(hop) != lost) or lost == hop[1].split(":")[0]:
                return set()
        reached = set()
        for island, hops in (("lon", TO_LON), ("fra", TO_FRA)):
            if all(self.cross(hop, data, copies=place(hop) != lost) for hop in hops):
                reached.add(island)
        self.now_ns += MS
        return reached

    def result(self, island: str, chunk: int, lost: bool = False, round_number: int = 0, bitmap: int = 1) -> int:
        """The island's edge sends a result; returns its number."""
        number = self.numbers.get(island, 0)
        self.numbers[island] = number + 1
        self._last_hop(island, self._result_header(island, chunk, number, round_number, bitmap), lost)
        return number

    def bypass(self, island: str, chunk: int) -> None:
        """The island's edge passes nyc's contribution on unsummed."""
        number = self.numbers.get(island, 0)
        self.numbers[island] = number + 1
        self._last_hop(island, header(chunk=chunk, flags=FLAG_BYPASSED, number=number, stream=STREAM), False)

    def repair(self, island: str, chunk: int, number: int, lost: bool = False) -> None:
        """The island's edge sends a result again."""
        packet = self._result_header(island, chunk, number, 0, 1)
        packet.flags = FLAG_RETRANSMITTED
        self._last_hop(island, packet, lost)

    def nack(self, island: str, number: int, bitmap: int = 1) -> None:
        """The island's host asks for results again."""
        identity = ISLANDS.index(island)
        packet = header(Kind.NACK, identity, value_count=0, number=number, bitmap=bitmap, stream=STREAM)
        hop = (f"{island}-h1:e0", f"{island}-e:h0")
        self.cross(hop, frame(packet, host(island), edge(island), REPAIR_PORT))

    def _result_header(self, island: str, chunk: int, number: int, round_number: int, bitmap: int) -> Header:
        return header(
            Kind.RESULT,
            ISLANDS.index(island),
            chunk,
            round=round_number,
            number=number,
            bitmap=bitmap,
            stream=STREAM,
            reason=Reason.COMPLETE,
        )

    def _last_hop(self, island: str, packet: Header, lost: bool) -> None:
        data = frame(packet, edge(island), host(island), RESULT_PORT)
        self.cross((f"{island}-e:h0", f"{island}-h1:e0"), data, copies=not lost)

    def round(self, chunks: int, lost: dict[int, str], round_number: int = 0) -> None:
        """A whole round: contributions, some of which are lost where it says, and results of what arrived."""
        for chunk in range(chunks):
            for island in sorted(self.contribute(chunk, lost.get(chunk, ""), round_number)):
                self.result(island, chunk, round_number=round_number)

    def analysed(self, directory: Path, lost_by_recorder: int = 0) -> Analysis:
        self.capture.end(lost_by_recorder)
        return analyse(Captures([self.capture.write(directory / "all.pcapng")]))


def hop_of(analysis: Analysis, name: str) -> Hop:
    return next(hop for hop in analysis.hops if hop.name == name)


def stream_to(analysis: Analysis, receiver: str) -> Stream:
    return next(stream for stream in analysis.streams if stream.receiver == receiver)
