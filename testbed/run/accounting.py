"""What the links should have carried in a run, and what they did."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduler.topology import Topology
from scheduler.trees import Tree
from testbed.network import naming
from testbed.run.frames import Framing
from testbed.run.program import Epoch
from testbed.run.rounds import RoundRecord

TOLERANCE_SHARE = 0.02
UNPLANNED_BYTES = 10_000  # address resolution and membership reports of a whole run
PROBING_BYTES = 10_000  # probes of an epoch that was made ready while others carried traffic

_IMPAIRED = ("dropped_loss", "duplicated", "corrupted")
_DROPS = ("dropped_queue", "dropped_loss", "dropped_other", "dropped_down")

Direction = tuple[str, str]
"""(sending node, receiving node)"""


@dataclass(frozen=True)
class LinkLoad:
    """One direction of a link: planned streams (whole payloads), on-wire bytes planned and measured, dropped frames.

    `unicast_streams`: what it would have carried without multicast. `routing_bytes`: what routing protocols put there,
    which is not in the measured bytes. `allowed_bytes`: what may come on top of the plan.
    """

    source: str
    target: str
    planned_streams: int
    unicast_streams: int
    planned_bytes: int
    measured_bytes: int
    routing_bytes: int
    dropped_frames: int
    allowed_bytes: int = UNPLANNED_BYTES

    @property
    def ok(self) -> bool:
        """Whether it carried what was planned, within 2 %."""
        slack = max(TOLERANCE_SHARE * self.planned_bytes, self.allowed_bytes)
        return abs(self.measured_bytes - self.planned_bytes) <= slack


def planned_streams(
    rounds: Iterable[tuple[Epoch, int]], topology: Topology, aggregation: str, hosts: int, copies: bool | None = None
) -> dict[Direction, int]:
    """How many whole payloads rounds, given by epoch and phase, put on each direction of each link.

    With `copies` every receiver gets its own, without each link carries one; None: as the epoch has it.
    """
    streams = {link.id: 0 for link in topology.links}
    for island in topology.islands:
        edge, inside = naming.edge_name(island.id), naming.access_node(island.id, hosts)
        streams[edge, inside] = streams[inside, edge] = 0
    for epoch, phase in rounds:
        copied = epoch.copies if copies is None else copies
        arriving: dict[str, int] = {}
        for flow in epoch.plan.rounds[phase].flows:
            up = naming.access_node(flow.source, hosts), naming.edge_name(flow.source)
            streams[up] += len(flow.receivers) if copied else 1
            for link, receivers in Tree(flow.source, flow.receivers, flow.links).copies().items():
                streams[link] += receivers if copied else 1
            for receiver in flow.receivers:
                arriving[receiver] = arriving.get(receiver, 0) + 1
        for receiver, count in arriving.items():
            down = naming.edge_name(receiver), naming.access_node(receiver, hosts)
            streams[down] += count if aggregation == "host" else 1
    return streams


def unsummed_bytes(records: Sequence[RoundRecord], framing: Framing, hosts: int) -> dict[Direction, int]:
    """On-wire bytes on access links beyond one stream per island and round, for what its edge had to send unsummed.

    What a short pool, a loading engine or a failed one lets through is no error of the links.
    """
    extra: dict[Direction, int] = {}
    for record in records:
        for island in record.retired:
            direction = naming.edge_name(island), naming.access_node(island, hosts)
            for host in range(1, hosts + 1):
                report = record.done[naming.host_name(island, host)]
                frames = report["complete"] + report["partial"] + report["bypassed"] - report["chunks"]
                if report["bypassed"] and frames > 0:
                    extra[direction] = extra.get(direction, 0) + frames * framing.full_frame_bytes
    return extra


def link_loads(
    planned: Mapping[Direction, int],
    unicast: Mapping[Direction, int],
    extra: Mapping[Direction, int],
    framing: Framing,
    records: Sequence[RoundRecord],
    allowed_bytes: Mapping[Direction, int],
) -> list[LinkLoad]:
    """Planned and measured loads of every direction in the rounds of `records`.

    `extra`: bytes beyond the planned streams, as unsummed_bytes has them. `allowed_bytes`: what may come on top, or be
    missing; so may frames that links were asked to lose, to send twice or to alter, anywhere behind, as far as links
    count them.
    """
    loads = []
    impaired = sum(
        (getattr(record.after[direction], name) or 0) - (getattr(record.before[direction], name) or 0)
        for record in records
        for direction in planned
        for name in _IMPAIRED
    )
    for direction, streams in planned.items():
        spans = [(record.before[direction], record.after[direction]) for record in records]
        routing = sum(record.routing_bytes.get(direction, 0) for record in records)
        dropped = sum(getattr(last, name) - getattr(first, name) for first, last in spans for name in _DROPS)
        loads.append(
            LinkLoad(
                *direction,
                planned_streams=streams,
                unicast_streams=unicast[direction],
                planned_bytes=streams * framing.wire_bytes + extra.get(direction, 0),
                measured_bytes=sum(last.bytes_in - first.bytes_in for first, last in spans) - routing,
                routing_bytes=routing,
                dropped_frames=dropped,
                allowed_bytes=allowed_bytes[direction] + impaired * framing.full_frame_bytes,
            )
        )
    return loads


def saving(loads: Sequence[LinkLoad], topology: Topology, framing: Framing) -> dict[str, float]:
    """Bytes on all core links, against those that unicast would have put there; the saving is a share of the latter."""
    core = {link.id for link in topology.links}
    measured = sum(load.measured_bytes for load in loads if (load.source, load.target) in core)
    unicast = sum(load.unicast_streams for load in loads if (load.source, load.target) in core) * framing.wire_bytes
    return {
        "core_bytes": measured,
        "unicast_core_bytes": unicast,
        "saving": 1 - measured / unicast if unicast else 0.0,
    }
