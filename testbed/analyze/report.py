"""An analysis as a JSON document, as tables of CSV, and as tables on the terminal."""

import csv
import statistics
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from testbed.analyze.results import Analysis, Hop, LostPacket, Stream
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


def to_json(analysis: Analysis) -> dict[str, Any]:
    """The document of `analyze --json`."""
    repair = analysis.repair
    return {
        "files": analysis.files,
        "frames": analysis.frames,
        "duration_ms": round((analysis.end_ns - analysis.start_ns) / 1e6, 3),
        "packets": dict(analysis.packets),
        "streams": [{**asdict(stream), "lost": dict(stream.lost)} for stream in analysis.streams],
        "hops": [{**asdict(hop), "hop": hop.name} for hop in analysis.hops],
        "partial_rounds": analysis.partial_rounds,
        "lost_packets": len(analysis.lost),
        "nacks": repair.nacks,
        "fetches": repair.fetches,
        "requests": repair.requests,
        "repairs": repair.repairs,
        "repaired": repair.repaired,
        "gone": repair.gone,
        "unrepaired_requests": repair.unrepaired,
        "repair_latency_ms": latency_ms(repair.latencies_ms),
        "reconciled": analysis.reconciled,
        "unexplained": analysis.unexplained,
        "complete": analysis.complete,
        "warnings": analysis.warnings,
    }


def write_csv(analysis: Analysis, directory: Path) -> list[Path]:
    """Write streams.csv, hops.csv, lost.csv and repairs.csv. Raises TestbedError."""
    start_ns = analysis.start_ns
    lost_columns = ["ms", *(each.name for each in fields(LostPacket)[1:])]
    tables: dict[str, tuple[list[str], list[list[Any]]]] = {
        "streams": (
            [each.name for each in fields(Stream)],
            [[*list(asdict(each).values())[:-1], _places(each)] for each in analysis.streams],
        ),
        "hops": ([each.name for each in fields(Hop)], [list(asdict(each).values()) for each in analysis.hops]),
        "lost": (
            lost_columns,
            [[round((each.time_ns - start_ns) / 1e6, 6), *list(asdict(each).values())[1:]] for each in analysis.lost],
        ),
        "repairs": (
            ["ms", "latency_ms"],
            [[round((time_ns - start_ns) / 1e6, 6), latency] for time_ns, latency in analysis.repair.times_ns],
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
    repair = analysis.repair
    if repair.requests:
        latency = latency_ms(repair.latencies_ms)
        spread = ", ".join(f"{name} {value:.1f}" for name, value in latency.items() if value is not None)
        console.print(
            f"repair: {repair.nacks} NACKs and {repair.fetches} fetches asked for {repair.requests} packets; "
            f" {repair.repaired} came ({repair.repairs} repairs), {repair.unrepaired} did not; "
            f"latency, ms: {spread or 'none'}"
        )
    if analysis.partial_rounds:
        rounds = ", ".join(str(number + 1) for number in analysis.partial_rounds)
        console.print(f"left out of the streams, since the captures have only a part of them: rounds {rounds}")
    for warning in analysis.warnings:
        console.print(f"[yellow]{warning}[/yellow]")
    verdict = "every packet is accounted for" if analysis.reconciled else f"{analysis.unexplained} are unexplained"
    total = f"{analysis.frames} frames of {len(analysis.files)} files, {len(analysis.lost)} packets lost on links"
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


def _places(stream: Stream) -> str:
    return ", ".join(f"{place} {count}" for place, count in stream.lost.most_common())
