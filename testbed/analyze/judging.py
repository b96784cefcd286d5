"""From where packets were seen to what became of them: hops and streams."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from aggregator.wire.packet import Kind
from testbed.analyze.captures import Captures
from testbed.analyze.flows import CONTRIBUTION, OTHER, REPAIR, Flow
from testbed.analyze.order import Order
from testbed.analyze.results import Hop, LostPacket, Recovery, Stream
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


def judge_hops(
    captures: Captures,
    patterns: Sequence[Pattern],
    order: Order,
    recoveries: Mapping[str, Recovery],
    redundant: Mapping[str, int],
) -> list[Hop]:
    """Every direction of a link of which both ends were captured, with its balance.

    By island: `recoveries`, what its hosts asked their edge for, and `redundant`, packets that they had no use for.
    """
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
                strangers += packets
                hop.duplicated += (received - 1) * packets
            else:
                hop.duplicated += (received - sent) * packets
        # What arrived and was never sent is what was altered on the way, as far as something else went missing.
        hop.altered = min(strangers, missing)
        hop.lost = missing - hop.altered
        hop.unexplained = strangers - hop.altered
        late = sum(count for (_, point), count in order.reordered.items() if point == inward)
        late_before = sum(count for (_, point), count in order.reordered.items() if point == out)
        hop.reordered = max(0, late - late_before)
        if here.is_edge and here.kind == "access":
            hop.recovery = recoveries.get(here.island, Recovery())
            if any(point.is_host and point.island == here.island for point in points):
                hop.redundant = redundant.get(here.island, 0)
        hops.append(hop)
    return hops


class Streams:
    """Judges the contributions of each source to each receiver, and names the place where each was lost."""

    def __init__(self, captures: Captures, flows: Sequence[Flow], patterns: Sequence[Pattern], order: Order) -> None:
        self._captures = captures
        self._flows = flows
        self._order = order
        self._patterns = patterns
        self._by_flow: dict[int, list[Pattern]] = {}
        for pattern in patterns:
            if flows[pattern.flow].kind == CONTRIBUTION and not pattern.bad:
                self._by_flow.setdefault(pattern.flow, []).append(pattern)
        self.streams: dict[tuple[int, str], Stream] = {}
        self.lost: list[LostPacket] = []
        self.islands: dict[int, str] = {}

    def judge(
        self, sums: Mapping[tuple[int, str], SourceCounts], recoveries: Mapping[tuple[int, str], Recovery]
    ) -> list[Stream]:
        """All streams, by source and receiver. `lost` has every frame that was lost on a link, when this is done.

        By contributor id and receiving island: `sums`, and `recoveries`, what was fetched.
        """
        for flow, patterns in self._by_flow.items():
            seen = np.flatnonzero(np.any([pattern.seen for pattern in patterns], axis=0)).tolist()
            self._judge_flow(flow, Way(self._captures, seen), patterns)
        for (source, receiver), counts in sums.items():
            stream = self.streams.get((source, receiver))
            if stream is not None:
                self._add_sums(stream, counts)
        for name, stream in self.streams.items():
            stream.recovery = recoveries.get(name, Recovery())
        self.islands = {source: stream.source for (source, _), stream in self.streams.items()}
        for pattern in self._patterns:
            self._note_losses(pattern)
        self.lost = [
            replace(packet, island=None if packet.source is None else self.islands.get(packet.source))
            for packet in self.lost
        ]
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

    def _note_losses(self, pattern: Pattern) -> None:
        """Note each frame that was lost on a link, at each link that lost it."""
        if pattern.when & TAIL or not pattern.rows:
            return
        points, kind = self._captures.points, self._flows[pattern.flow].kind
        for out, inward in self._captures.peers.items():
            # The same frame may have been sent several times.
            times = int(pattern.seen[out]) - int(pattern.seen[inward])
            if times > 0:
                place = f"{points[out].node}>{points[inward].node}"
                lost = [_lost_packet(kind, facts, place) for facts in pattern.facts()]
                self.lost += [packet for packet in lost for _ in range(times)]


def _lost_packet(kind: int, facts: np.void, place: str) -> LostPacket:
    name, first_ns = class_name(kind), int(facts["first_ns"])
    if kind == OTHER:
        return LostPacket(first_ns, name, place)
    fields: dict[str, Any] = {
        each: int(facts[each]) for each in ("source", "round", "shard", "chunk", "number", "bitmap")
    }
    return LostPacket(first_ns, name, place, **fields)


def _seen(pattern: Pattern) -> dict[int, int]:
    return {point: int(pattern.seen[point]) for point in np.flatnonzero(pattern.seen).tolist()}
