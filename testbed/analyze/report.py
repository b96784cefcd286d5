"""An analysis as a JSON document, as tables of CSV, and as tables on the terminal."""

import csv
import statistics
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from testbed.analyze.results import Analysis, Hop, LostPacket, Recovery, Stream
from testbed.errors import TestbedError

_TABLE_WIDTH = 130


def latency_ms(latencies: Sequence[float]) -> dict[str, float | None]:
    """Median, 99th percentile and greatest of ascending times; nulls if there are none."""
    if not latencies:
        return {"median": None, "p99": None, "max": None}
    p99 = latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))]
    return {
        "median": round(statistics.median(latencies), 3),
        "p99": round(p99, 3),
        "max": round(latencies[-1], 3),
    }


def _recovery(recovery: Recovery) -> dict[str, Any]:
    document = asdict(recovery)
    return {**document, "latency_ms": latency_ms(document.pop("latencies_ms"))}


def to_json(analysis: Analysis) -> dict[str, Any]:
    """The document of `analyze --json`."""
    return {
        "files": analysis.files,
        "frames": analysis.frames,
        "duration_ms": round((analysis.end_ns - analysis.start_ns) / 1e6, 3),
        "packets": dict(analysis.packets),
        "streams": [
            {**asdict(stream), "lost": dict(stream.lost), "recovery": _recovery(stream.recovery)}
            for stream in analysis.streams
        ],
        "hops": [
            {**asdict(hop), "hop": hop.name, "recovery": hop.recovery and _recovery(hop.recovery)}
            for hop in analysis.hops
        ],
        "partial_rounds": analysis.partial_rounds,
        "lost_frames": len(analysis.lost),
        "nacks": analysis.nacks,
        "fetches": analysis.fetches,
        "recovery": _recovery(analysis.repair),
        "repair_latency_ms": latency_ms(analysis.repair.latencies_ms),
        "reconciled": analysis.reconciled,
        "unexplained": analysis.unexplained,
        "complete": analysis.complete,
        "warnings": analysis.warnings,
    }


def _flat(row: Stream | Hop) -> dict[str, Any]:
    """The columns of a stream or hop; those of its recovery follow, and are empty where there can be none."""
    columns = {each.name: getattr(row, each.name) for each in fields(row) if each.name != "recovery"}
    if isinstance(row, Stream):
        columns["lost"] = _places(row)
    recovery = _recovery(row.recovery or Recovery())
    recovery |= {f"latency_{name}_ms": value for name, value in recovery.pop("latency_ms").items()}
    return columns | (dict.fromkeys(recovery) if row.recovery is None else recovery)


def write_csv(analysis: Analysis, directory: Path) -> list[Path]:
    """Write streams.csv, hops.csv, lost.csv and repairs.csv. Raises TestbedError."""
    start_ns = analysis.start_ns
    lost_columns = ["ms", *(each.name for each in fields(LostPacket)[1:])]
    tables: dict[str, tuple[list[str], list[list[Any]]]] = {
        "streams": (list(_flat(Stream("", ""))), [list(_flat(each).values()) for each in analysis.streams]),
        "hops": (list(_flat(Hop("", "", "", ""))), [list(_flat(each).values()) for each in analysis.hops]),
        "lost": (
            lost_columns,
            [[round((each.time_ns - start_ns) / 1e6, 6), *list(asdict(each).values())[1:]] for each in analysis.lost],
        ),
        "repairs": (
            ["ms", "latency_ms"],
            [[round((time_ns - start_ns) / 1e6, 6), latency] for time_ns, latency in analysis.repair_times_ns],
        ),
    }
    paths = []
    try:
        directory.mkdir(exist_ok=True)
        for name, (columns, lines) in tables.items():
            path = directory / f"{name}.csv"
            with path.open("w", encoding="utf-8", newline="") as file:
                table = csv.writer(file)
                table.writerow(columns)
                table.writerows(lines)
            paths.append(path)
    except OSError as error:
        raise TestbedError(f"--csv {directory}: {error.strerror}; name another directory") from error
    return paths


def print_report(console: Console, analysis: Analysis) -> None:
    """Tables for people: streams, the links that did something, repairs, and the verdict."""
    console.width = max(console.width, _TABLE_WIDTH)
    _print_streams(console, analysis.streams)
    _print_hops(console, analysis.hops)
    _print_recoveries(console, analysis)
    if analysis.partial_rounds:
        rounds = ", ".join(str(number) for number in analysis.partial_rounds)
        console.print(f"left out of the streams, since the captures have only a part of them: rounds {rounds}")
    for warning in analysis.warnings:
        console.print(f"[yellow]{warning}[/yellow]")
    verdict = "every packet is accounted for" if analysis.reconciled else f"{analysis.unexplained} are unexplained"
    total = f"{analysis.frames} frames of {len(analysis.files)} files, {len(analysis.lost)} lost on links"
    console.print(f"{total}; {verdict}" + ("" if analysis.complete else "; the captures are incomplete"))


def _print_streams(console: Console, streams: Sequence[Stream]) -> None:
    if not streams:
        return
    table = Table(box=None, pad_edge=False, title="contributions, in chunks", title_justify="left")
    table.add_column("stream", no_wrap=True)
    for heading in ("sent", "at the edge", "delivered", "repaired", "unrepaired", "duplicates", "reordered"):
        table.add_column(heading, justify="right")
    table.add_column("lost at")
    for stream in streams:
        counts = (stream.sent, stream.arrived, stream.delivered, stream.repaired, stream.unrepaired)
        table.add_row(
            f"{stream.source} → {stream.receiver}",
            *("?" if count is None else str(count) for count in (*counts, stream.duplicates, stream.reordered)),
            _places(stream),
        )
    console.print(table)


def _print_hops(console: Console, hops: Sequence[Hop]) -> None:
    eventful = [hop for hop in hops if hop.lost or hop.duplicated or hop.altered or hop.reordered or hop.unexplained]
    if not hops:
        console.print("no link was captured at both ends")
        return
    frames = sum(hop.sent for hop in hops)
    console.print(
        f"links: {len(hops)} directions carried {frames} frames; "
        + (f"on {len(eventful)} something happened:" if eventful else "nothing happened on any")
    )
    if not eventful:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("link", no_wrap=True)
    columns = ("sent", "received", "lost", "duplicated", "altered", "reordered", "in_flight", "unexplained")
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right")
    for hop in eventful:
        table.add_row(hop.name, *(str(getattr(hop, column)) for column in columns))
    console.print(table)


def _print_recoveries(console: Console, analysis: Analysis) -> None:
    """What the hosts of each island asked for again: of their edge, and of all other islands together."""
    named = [(f"{hop.target} of {hop.source}", hop.recovery) for hop in analysis.hops if hop.recovery is not None]
    for receiver in sorted({stream.receiver for stream in analysis.streams}):
        fetched = Recovery()
        for stream in analysis.streams:
            if stream.receiver == receiver:
                fetched.add(stream.recovery)
        named.append((f"{receiver} of other islands", fetched))
    named.append(("all", analysis.repair))
    asked = [(name, recovery) for name, recovery in named if recovery.wanted]
    if not asked:
        return
    table = Table(box=None, pad_edge=False, title="asked for again, in packets", title_justify="left")
    table.add_column("who asked whom", no_wrap=True)
    for heading in ("requests", "wanted", "repaired", "unrepaired", "gone", "repairs", "median ms", "p99 ms", "max ms"):
        table.add_column(heading, justify="right")
    for name, each in asked:
        latency = latency_ms(each.latencies_ms).values()
        counts = (each.requests, each.wanted, each.repaired, each.unrepaired, each.gone, each.repairs)
        table.add_row(name, *map(str, counts), *("" if ms is None else f"{ms:.1f}" for ms in latency))
    console.print(table)


def _places(stream: Stream) -> str:
    return ", ".join(f"{place} {count}" for place, count in stream.lost.most_common())
