"""What repair did in a run, and what it put on the links (docs/recovery.md)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aggregator.wire.packet import frame_bytes
from testbed.network import naming
from testbed.run.accounting import Direction
from testbed.run.frames import Framing
from testbed.run.rounds import RoundRecord


@dataclass(frozen=True)
class Closing:
    """What edges, by island, and hosts have counted since their reports on the last round: some serve others longer.

    `late`: packets for sums that came to hosts in that time, and were dropped.
    """

    edges: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    hosts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    late: Mapping[str, int] = field(default_factory=dict)


def repair_counts(records: Sequence[RoundRecord], closing: Closing) -> dict[str, dict[str, int]]:
    """What edges and hosts have counted, over all rounds and afterwards."""
    edges, hosts = Counter[str](), Counter[str]()
    for record in records:
        for reports, totals in ((record.retired, edges), (record.done, hosts)):
            for report in reports.values():
                totals.update(report["repair"])
    for counts, totals in ((closing.edges, edges), (closing.hosts, hosts)):
        for each in counts.values():
            totals.update(each)
    return {"edges": dict(sorted(edges.items())), "hosts": dict(sorted(hosts.items()))}


def last_hop_repair_bytes(records: Sequence[RoundRecord], hosts: int) -> dict[Direction, int]:
    """On-wire bytes of repair on access links: requests up; packets sent again, heartbeats and gone down."""
    extra: dict[Direction, int] = {}
    for record in records:
        for island, report in record.retired.items():
            edge, inside = naming.edge_name(island), naming.access_node(island, hosts)
            repair = Counter(report["repair"])
            asked = repair["nacks"] + repair["nacks_limited"]
            down = repair["repair_bytes"] + frame_bytes(0) * (repair["heartbeats"] + repair["gone_answers"])
            extra[inside, edge] = extra.get((inside, edge), 0) + frame_bytes(0) * asked
            extra[edge, inside] = extra.get((edge, inside), 0) + down
    return extra


def fetched_bytes(records: Sequence[RoundRecord], framing: Framing) -> int:
    """On-wire bytes of what hosts have fetched from each other, requests included: what it puts on any one link.

    And what may be missing on access links, where a sum that was fetched in parts has never passed.
    """
    repairs = [Counter(report["repair"]) for record in records for report in record.done.values()]
    answers = sum(repair["answers"] for repair in repairs)
    return framing.full_frame_bytes * answers + frame_bytes(0) * sum(repair["fetches_sent"] for repair in repairs)
