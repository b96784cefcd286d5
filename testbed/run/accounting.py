"""What the links should have carried in a run, and what they did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.topology import Topology
from testbed.links.interface import DirectionCounters
from testbed.network import naming
from testbed.run.frames import Framing
from testbed.run.program import Epoch
from testbed.run.rounds import RoundRecord

TOLERANCE_SHARE = 0.02
UNPLANNED_BYTES = 10_000  # address resolution and membership reports of a whole run


@dataclass(frozen=True)
class LinkLoad:
    """One direction of a link: on-wire bytes planned and measured, and frames dropped on it."""

    source: str
    target: str
    planned_bytes: int
    measured_bytes: int
    dropped_frames: int

    @property
    def ok(self) -> bool:
        """Whether it carried what was planned, within 2 %."""
        slack = max(TOLERANCE_SHARE * self.planned_bytes, UNPLANNED_BYTES)
        return abs(self.measured_bytes - self.planned_bytes) <= slack


def planned_bytes(
    epoch: Epoch, topology: Topology, framing: Framing, phases: Sequence[int]
) -> dict[tuple[str, str], int]:
    """On-wire bytes that rounds of the given phases put on each direction of each link, access links included."""
    streams = {(link.source, link.target): 0 for link in topology.links}
    for island in topology.islands:
        edge, host = naming.edge_name(island.id), naming.host_name(island.id)
        streams[edge, host] = streams[host, edge] = 0
    for position in phases:
        receiving: set[str] = set()
        for flow in epoch.plan.rounds[position].flows:
            streams[naming.host_name(flow.source), naming.edge_name(flow.source)] += 1
            for link in flow.links:
                streams[link] += 1
            receiving.update(flow.receivers)
        for island_name in receiving:
            streams[naming.edge_name(island_name), naming.host_name(island_name)] += 1
    return {direction: count * framing.wire_bytes for direction, count in streams.items()}


def unsummed_bytes(records: Sequence[RoundRecord], framing: Framing) -> dict[tuple[str, str], int]:
    """On-wire bytes on access links beyond one stream per island and round, for what its edge had to send unsummed.

    What a short pool, a loading engine or a failed one lets through is no error of the links.
    """
    extra: dict[tuple[str, str], int] = {}
    for record in records:
        for island, report in record.done.items():
            frames = report["complete"] + report["partial"] + report["bypassed"] - report["chunks"]
            if report["bypassed"] and frames > 0:
                direction = naming.edge_name(island), naming.host_name(island)
                extra[direction] = extra.get(direction, 0) + frames * framing.full_frame_bytes
    return extra


def link_loads(
    planned: Mapping[tuple[str, str], int],
    before: Mapping[tuple[str, str], DirectionCounters],
    after: Mapping[tuple[str, str], DirectionCounters],
) -> list[LinkLoad]:
    """Planned and measured bytes of every direction between two readings of the counters."""
    loads = []
    for (source, target), wanted in planned.items():
        first, last = before[source, target], after[source, target]
        dropped = sum(
            getattr(last, name) - getattr(first, name) for name in ("dropped_queue", "dropped_loss", "dropped_other")
        )
        loads.append(LinkLoad(source, target, wanted, last.bytes_in - first.bytes_in, dropped))
    return loads
