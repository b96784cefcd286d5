"""Analyses captures in one pass over their files."""

from collections import Counter

import numpy as np

from testbed.analyze.addresses import Addresses
from testbed.analyze.captures import Captures
from testbed.analyze.flows import CONTRIBUTION, RESULT, Flows, classes
from testbed.analyze.judging import Streams, class_name, judge_hops
from testbed.analyze.order import Order
from testbed.analyze.repairs import Repairs
from testbed.analyze.results import Analysis
from testbed.analyze.rounds import Rounds
from testbed.analyze.sums import Sums
from testbed.analyze.transits import Transits
from testbed.errors import TestbedError


def analyse(captures: Captures) -> Analysis:
    """What the captures tell. Raises TestbedError if they are damaged, or have no packets of ours."""
    flows, order, rounds, sums, repairs = Flows(), Order(), Rounds(), Sums(captures), Repairs(captures)
    transits = Transits(len(captures.points), list(captures.peers.items()), captures.time_dilation)
    addresses = Addresses(captures)
    packets: Counter[int] = Counter()
    for reached_ns, sightings, others in captures.sightings():
        kind = classes(sightings.packets.header)
        flow = flows.of(sightings, kind)
        transits.add(sightings, flow, np.isin(kind, (CONTRIBUTION, RESULT)))
        if captures.peers:
            transits.add(
                others, flows.of(others, np.zeros(len(others.point), np.int64)), np.zeros(len(others.point), bool)
            )
        order.add(sightings, kind, flow)
        meant = addresses.without_strays(sightings)
        kind_of_meant = kind if meant is sightings else classes(meant.packets.header)
        sums.add(meant, kind_of_meant)
        repairs.add(meant, kind_of_meant)
        for each, count in zip(*np.unique(kind, return_counts=True), strict=True):
            packets[int(each)] += int(count)
        rounds.add(sightings, kind)
        left_out = rounds.begun_by(captures.start_ns, transits.longest_ns)
        transits.finish(reached_ns, left_out)
        sums.finish(reached_ns, left_out)
    if not packets:
        names = ", ".join(str(file.path) for file in captures.files)
        cut = f", {captures.unreadable} of which are cut before the end of our header" if captures.unreadable else ""
        raise TestbedError(f"{names}: none of our packets among {captures.frames} frames{cut}; see docs/capture.md")
    start_ns = captures.first_ns if captures.start_ns is None else captures.start_ns
    end_ns = captures.last_ns if captures.end_ns is None else captures.end_ns
    left_out = np.concatenate(
        [
            rounds.begun_by(captures.start_ns, transits.longest_ns),
            transits.open_rounds(end_ns),
            sums.open_rounds(end_ns, transits.longest_ns),
        ]
    )
    transits.finish_all(start_ns, end_ns, left_out)
    sums.finish_all(left_out)
    repairs.finish()
    patterns = list(transits.patterns.values())
    of_edges = repairs.of_edges()
    hops = judge_hops(captures, patterns, order, of_edges, sums.redundant)
    judged = Streams(captures, flows.all, patterns, order)
    streams = judged.judge(sums.counts, repairs.of_sources(flows.sources()))
    total = repairs.total()
    nacks = sum(recovery.requests for recovery in of_edges.values())
    warnings = _warnings(captures)
    return Analysis(
        files=[str(file.path) for file in captures.files],
        frames=captures.frames,
        packets=Counter({class_name(kind): count for kind, count in packets.items()}),
        start_ns=start_ns,
        end_ns=end_ns,
        hops=hops,
        streams=streams,
        repair=total,
        nacks=nacks,
        fetches=total.requests - nacks,
        repair_times_ns=repairs.times_ns(),
        first_fetched=repairs.first_fetched(flows.sources()),
        lost=judged.lost,
        islands=judged.islands,
        partial_rounds=np.unique(left_out).tolist(),
        complete=not warnings,
        unexplained=sum(hop.unexplained for hop in hops) + sum(stream.unexplained for stream in streams),
        warnings=warnings,
    )


def _warnings(captures: Captures) -> list[str]:
    """Why the captures may not have every frame."""
    found = []
    if captures.lost_by_recorder:
        found.append(
            f"incomplete: the recording lacks {captures.lost_by_recorder} frames that it could not keep up with"
        )
    if captures.unended:
        found.append(f"incomplete: of {captures.unended} interfaces it is not known whether all frames were recorded")
    found += [f"incomplete: the end of {path} is missing" for path in captures.cut_files]
    if captures.unreadable:
        found.append(f"incomplete: {captures.unreadable} packets were cut before the end of their header")
    return found
