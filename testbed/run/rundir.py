"""The run directory: everything a run leaves for its user."""

import csv
import json
import os
import platform
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.run.rounds import RoundRecord
from testbed.run.settings import RunSettings
from testbed.run.strain import Strain
from testbed.scale import Scale

_ROUND_COLUMNS = (
    *("round", "epoch", "phase", "start_ms", "completion_ms", "planned_ms", "packetisation_ms", "ratio"),
    *("expected", "delivered", "exact", "digests_equal", "steps", "trustworthy", "reasons"),
)
_REPORTED_PACKAGES = ("testbed", "numpy", "networkx", "pulp", "highspy", "pyroute2", "scikit-learn")


class RunDirectory:
    """Writes into one run's directory; each file is complete after each call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self.logs.mkdir()

    def event(self, kind: str, **fields: Any) -> None:
        """Append one event with its time to events.jsonl."""
        line = json.dumps({"monotonic_ns": time.monotonic_ns(), "event": kind, **fields})
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def manifest(self, settings: RunSettings, run_id: str, topology: dict[str, Any], plan: dict[str, Any]) -> None:
        """Write what it takes to do the same run again."""
        content = {
            "run_id": run_id,
            "started": datetime.now(UTC).isoformat(),
            "settings": {
                **asdict(settings),
                "out": str(self.path),
                "scenario": None if settings.scenario is None else settings.scenario.read_text(encoding="utf-8"),
            },
            "versions": {name: _version(name) for name in _REPORTED_PACKAGES},
            "python": platform.python_version(),
            "kernel": platform.release(),
            "cpu": _cpu_model(),
            "cpus": os.cpu_count(),
            "clock": clock_offset(),
            "topology": topology,
            "plan": plan,
        }
        self._write_json("manifest.json", content)

    def rounds(self, records: Sequence[RoundRecord], strains: Sequence[Strain], scale: Scale) -> None:
        """Write rounds.csv: one line per round, times undilated."""
        with (self.path / "rounds.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(_ROUND_COLUMNS)
            for record, strain in zip(records, strains, strict=True):
                times_ns = (record.completion_ns, record.planned_ns, record.packetisation_ns)
                table.writerow(
                    [
                        record.number,
                        record.epoch,
                        record.phase,
                        round(scale.undilated_ms(record.start_ns - records[0].start_ns), 3),
                        *(round(scale.undilated_ms(time_ns), 3) for time_ns in times_ns),
                        round(record.ratio, 5),
                        record.total("expected"),
                        record.total("delivered"),
                        record.exact,
                        record.digests_equal,
                        record.steps,
                        strain.trustworthy,
                        "; ".join(strain.reasons),
                    ]
                )

    def memory(self, records: Sequence[RoundRecord], scale: Scale, slot_bytes: int) -> None:
        """Write memory.csv: the slots in use at each edge over time, from each round's start on, undilated."""
        with (self.path / "memory.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(("round", "island", "ms", "slots", "memory_gb"))
            for record in records:
                for island, report in sorted(record.retired.items()):
                    for time_ns, slots in report["occupancy"]:
                        ms = scale.undilated_ms(time_ns - record.start_ns)
                        memory_gb = scale.full_size_gb(slots * slot_bytes)
                        table.writerow((record.number, island, round(ms, 3), slots, round(memory_gb, 6)))

    def mixing(self, records: Sequence[RoundRecord], islands: Sequence[str]) -> None:
        """Write mixing.csv: the weight of each contributor in what each island applied, round by round."""
        with (self.path / "mixing.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(("round", "island", "contributor", "weight"))
            for record in records:
                for receiver, contributor in zip(*record.mixing.nonzero(), strict=True):
                    weight = float(record.mixing[receiver, contributor])
                    table.writerow((record.number, islands[receiver], islands[contributor], weight))

    def summary(self, summary: dict[str, Any]) -> None:
        self._write_json("summary.json", summary)

    def give_to_caller(self) -> None:
        """Make the files belong to the user who called sudo."""
        if "SUDO_UID" not in os.environ:
            return
        owner = int(os.environ["SUDO_UID"]), int(os.environ.get("SUDO_GID", "-1"))
        for path in (self.path, *self.path.rglob("*")):
            os.chown(path, *owner, follow_symlinks=False)
        if self.path.parent.name == "runs" and self.path.parent.stat().st_uid == 0:
            os.chown(self.path.parent, *owner)

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        unfinished = self.path / f".{name}"
        unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        unfinished.rename(self.path / name)


def check_run_directory(out: Path | None) -> None:
    """Raise TestbedError if `out` cannot become a run directory. Changes nothing."""
    if out is None:
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise TestbedError(f"--out {out}: not an empty directory; name a new one")
    if not out.resolve().parent.is_dir():
        raise TestbedError(f"--out {out}: there is no directory {out.resolve().parent}; make it first")


def make_run_directory(out: Path | None, policy: str) -> RunDirectory:
    """Make the run directory: `out`, or runs/<UTC time>-<policy> below the current one. Raises TestbedError."""
    label = re.sub(r"[^A-Za-z0-9.-]+", "-", policy)
    path = out or Path("runs") / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{label}"
    try:
        path.mkdir(parents=True, exist_ok=out is not None)
        return RunDirectory(path.resolve())
    except OSError as error:
        raise TestbedError(f"run directory {path}: {error.strerror}; name another with --out") from error


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    match = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return match.group(1) if match else platform.machine()


def clock_offset() -> dict[str, int]:
    """Wall clock and monotonic clock, read together."""
    before = time.monotonic_ns()
    wall = time.time_ns()
    after = time.monotonic_ns()
    return {"wall_minus_monotonic_ns": wall - (before + after) // 2, "uncertainty_ns": (after - before + 1) // 2}
