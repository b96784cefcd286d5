"""What the captures of a run say, beside what its links, hosts and edges have counted themselves."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from testbed.analyze.results import Analysis

Disagreements = dict[str, tuple[object, object]]
"""What the captures say and what was counted, by the name of it."""


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """The run's events of one kind."""
    lines = (run_dir / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def disagreements_with_links(run_dir: Path, analysis: Analysis) -> Disagreements:
    """Where a hop is not what the link's own counters say. Altered frames may be fewer: see docs/analyze.md."""
    [begin], [end] = events(run_dir, "capture_started"), events(run_dir, "capture_stopped")
    hops = {hop.name: hop for hop in analysis.hops}
    named = Counter(packet.place for packet in analysis.lost)
    found: Disagreements = {}
    for name, before in begin["links"].items():
        counted = Counter({key: end["links"][name][key] - before[key] for key in before})
        dropped = sum(count for key, count in counted.items() if key.startswith("dropped"))
        hop = hops[name]
        pairs = {
            "sent": (hop.sent, counted["frames_in"]),
            "received": (hop.received, counted["frames_out"]),
            "lost": (hop.lost, dropped),
            "named": (named[name], dropped + hop.altered),
            "duplicated": (hop.duplicated, counted["duplicated"]),
            "altered": (hop.altered, min(hop.altered, counted["corrupted"])),
            "reordered": (hop.reordered > 0, counted["reordered"] > 0),
            "unsettled": ((hop.in_flight, hop.entering, hop.unexplained), (0, 0, 0)),
        }
        found |= {f"{name} {what}": pair for what, pair in pairs.items() if pair[0] != pair[1]}
    wires = [hop for hop in analysis.hops if hop.name not in begin["links"]]
    found |= {f"{hop.name} lost": (hop.lost, 0) for hop in wires if hop.lost}
    return found


def disagreements_with_agents(run_dir: Path, analysis: Analysis) -> Disagreements:
    """Where streams, or the recovery of an island, are not what its hosts and its edge have counted."""
    hosts, edges = _counts_of_agents(run_dir)
    down = {hop.source.removesuffix("-e"): hop for hop in analysis.hops if hop.recovery is not None}
    found: Disagreements = {}
    for island, edge in edges.items():
        host = hosts[island]
        to = [stream for stream in analysis.streams if stream.receiver == island]
        by = [stream for stream in analysis.streams if stream.source == island]
        hop = down[island]
        assert hop.recovery is not None
        pairs: Disagreements = {
            "expected": (sum(stream.sent for stream in to), host["expected"]),
            "delivered": (sum((stream.delivered or 0) + (stream.repaired or 0) for stream in to), host["delivered"]),
            "repaired": (sum(stream.repaired or 0 for stream in to), host["repaired"]),
            "redundant": (hop.redundant, host["duplicates"] + host["overlaps"] + host["late"]),
            "NACKs": (hop.recovery.requests, host["requests"]),
            "NACKs at the edge": (hop.recovery.requests_received, edge["nacks"] + edge["nacks_limited"]),
            "repairs": (hop.recovery.repairs_sent, edge["repairs"]),
            "fetches": (sum(stream.recovery.requests for stream in to), host["fetches_sent"]),
            "fetches of others": (
                sum(stream.recovery.requests_received for stream in by),
                host["fetches"] + host["fetches_limited"],
            ),
            "answers": (sum(stream.recovery.repairs_sent for stream in by), host["answers"]),
            "duplicates at the edge": (sum(stream.duplicates for stream in to), edge["duplicate"]),
        }
        found |= {f"{island} {what}": pair for what, pair in pairs.items() if pair[0] != pair[1]}
    return found


def _counts_of_agents(run_dir: Path) -> tuple[dict[str, Counter[str]], dict[str, Counter[str]]]:
    """All counts of hosts and of edges, by island."""
    hosts: dict[str, Counter[str]] = {}
    edges: dict[str, Counter[str]] = {}
    for event in events(run_dir, "round"):
        for reports, totals in ((event["done"], hosts), (event["retired"], edges)):
            for name, report in reports.items():
                total = totals.setdefault(name.partition("-")[0], Counter())
                total.update({key: count for key, count in report.items() if isinstance(count, int)})
                total.update(report["repair"])
    [finished] = events(run_dir, "finished")
    closing = finished["closing"]
    for reports, totals in ((closing["hosts"], hosts), (closing["edges"], edges)):
        for name, counts in reports.items():
            totals[name.partition("-")[0]].update(counts)
    for name, late in closing["late"].items():
        hosts[name.partition("-")[0]]["late"] += late
    return hosts, edges
