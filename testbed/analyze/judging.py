"""From where packets were seen to what became of them: hops and streams."""

from collections.abc import Mapping, Sequence

import numpy as np

from aggregator.wire.packet import Kind
from testbed.analyze.captures import Captures
from testbed.analyze.flows import CONTRIBUTION, OTHER, REPAIR, Flow
from testbed.analyze.order import Order
from testbed.analyze.results import Hop, LostPacket, Stream
from testbed.analyze.sums import SourceCounts
from testbed.analyze.transits import HEAD, LEFT_OUT, TAIL, Pattern
from testbed.analyze.ways import Way


def class_name(kind: int) -> str:
    """A class of packets in words."""
    if kind == OTHER:
        return "other"
    if kind & REPAIR:
        return "repair"
    return "fetched" if kind not in set(Kind) else Kind(kind).name.lower()


def judge_hops(captures: Captures, patterns: Sequence[Pattern], order: Order) -> list[Hop]:
    """Every direction of a link of which both ends were captured, with its balance."""
    points = captures.points
    hops = []
    for out, inward in sorted(captures.peers.items()):
        here, there = points[out], points[inward]
        hop = Hop(here.link, here.kind, here.node, there.node)
        missing = strangers = 0
        for pattern in patterns:
            sent, received = int(pattern.seen[out]), int(pattern.seen[inward])
            if not sent and not received:
                continue
            packets = pattern.packets
            hop.sent += sent * packets
            hop.received += received * packets
            if sent > received and pattern.when & TAIL:
                hop.in_flight += (sent - received) * packets
            elif sent > received:
                missing += (sent - received) * packets
            elif sent == 0 and pattern.when & HEAD:
                hop.entering += received * packets
            elif sent == 0:
                strangers += received * packets
            else:
                hop.duplicated += (received - sent) * packets
        # What arrived and was never sent is what was altered on the way, as far as something else went missing.
        hop.altered = min(strangers, missing)
        hop.lost = missing - hop.altered
        hop.unexplained = strangers - hop.altered
        late = sum(count for (_, point), count in order.reordered.items() if point == inward)
        late_before = sum(count for (_, point), count in order.reordered.items() if point == out)
        hop.reordered = max(0, late - late_before)
        hops.append(hop)
    return hops


class Streams:
    """Judges the contributions of each source to each receiver, and names the place where each was lost."""

    def __init__(self, captures: Captures, flows: Sequence[Flow], patterns: Sequence[Pattern], order: Order) -> None:
        self._captures = captures
        self._flows = flows
        self._order = order
        self._by_flow: dict[int, list[Pattern]] = {}
        for pattern in patterns:
            if not pattern.bad and flows[pattern.flow].kind != OTHER:
                self._by_flow.setdefault(pattern.flow, []).append(pattern)
        self._names: dict[int, str] = {}
        self.streams: dict[tuple[int, str], Stream] = {}
        self.lost: list[LostPacket] = []

    def judge(self, sums: Mapping[tuple[int, str], SourceCounts]) -> list[Stream]:
        """All streams, by source and receiver. `lost` has every packet that was lost on a link, when this is done."""
        for flow, patterns in self._by_flow.items():
            seen = np.flatnonzero(np.any([pattern.seen for pattern in patterns], axis=0)).tolist()
            way = Way(self._captures, seen)
            for pattern in patterns:
                self._note_losses(self._flows[flow], way, pattern)
            if self._flows[flow].kind == CONTRIBUTION:
                self._judge_flow(flow, way, patterns)
        for (source, receiver), counts in sums.items():
            stream = self.streams.get((source, receiver))
            if stream is not None:
                self._add_sums(stream, counts)
        self.lost.sort(key=lambda packet: packet.time_ns)
        return sorted(self.streams.values(), key=lambda stream: (stream.source, stream.receiver))

    def _judge_flow(self, flow: int, way: Way, patterns: Sequence[Pattern]) -> None:
        points, source = self._captures.points, self._flows[flow].source
        roots = [point for point in way.roots if points[point].outbound]
        if not roots:
            return
        for leaf in way.leaves:
            if not points[leaf].is_edge or points[leaf].island == points[roots[0]].island:
                continue
            receiver = points[leaf].island
            stream = self.streams.setdefault((source, receiver), Stream(points[roots[0]].island, receiver))
            stream.reordered += self._order.reordered[flow, leaf]
            for pattern in (pattern for pattern in patterns if not pattern.when & LEFT_OUT):
                seen = _seen(pattern)
                if not any(seen.get(root) for root in roots):
                    continue
                stream.sent += pattern.packets
                copies = seen.get(leaf, 0)
                if copies:
                    stream.arrived += pattern.packets
                    stream.duplicates += (copies - 1) * pattern.packets
                elif loss := way.loss(seen, leaf):
                    stream.lost[loss.place] += pattern.packets
                else:
                    stream.unexplained += pattern.packets

    def _add_sums(self, stream: Stream, counts: SourceCounts) -> None:
        """Go on from the receiver's edge to its hosts."""
        points = self._captures.points
        here = [point for point in points if point.island == stream.receiver]
        if not any(point.is_edge and point.kind != "wire" for point in here) or not any(p.is_host for p in here):
            return
        stream.delivered, stream.repaired = counts.delivered, counts.repaired
        if counts.absorbed:
            stream.lost[f"{stream.receiver}-e"] += counts.absorbed
        if counts.undelivered:
            access = next(point for point in here if point.is_edge and point.kind != "wire" and point.outbound)
            stream.lost[f"{access.node}>{access.peer.split(':')[0]}"] += counts.undelivered
        stream.unrepaired = stream.sent - counts.delivered - counts.repaired
        balance = stream.sent - stream.lost.total() - stream.unexplained - counts.delivered
        stream.unexplained += abs(balance) + counts.made_up

    def _note_losses(self, flow: Flow, way: Way, pattern: Pattern) -> None:
        if pattern.when & TAIL or not pattern.rows:
            return
        points, seen = self._captures.points, _seen(pattern)
        places = [
            f"{points[out].node}>{points[inward].node}"
            for out, inward in way.hops
            if seen.get(out, 0) > seen.get(inward, 0)
        ]
        for place in places:
            for facts in pattern.facts():
                self.lost.append(
                    LostPacket(
                        time_ns=int(facts["first_ns"]),
                        kind=class_name(flow.kind),
                        source=int(facts["source"]),
                        round=int(facts["round"]),
                        shard=int(facts["shard"]),
                        chunk=int(facts["chunk"]),
                        number=int(facts["number"]),
                        bitmap=int(facts["bitmap"]),
                        place=place,
                    )
                )


def _seen(pattern: Pattern) -> dict[int, int]:
    return {point: int(pattern.seen[point]) for point in np.flatnonzero(pattern.seen).tolist()}
