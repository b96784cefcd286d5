"""The run directory: everything a run leaves for its user."""

import csv
import errno
import io
import json
import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from testbed.errors import RunFailed, TestbedError
from testbed.live.protocol import EVENTS
from testbed.run.rounds import RoundRecord
from testbed.run.settings import RunSettings, settings_to_json
from testbed.run.strain import Strain
from testbed.scale import Scale

_ROUNDS, _MEMORY, _MIXING = "rounds.csv", "memory.csv", "mixing.csv"
_ROUND_COLUMNS = (
    *("round", "epoch", "phase", "start_ms", "completion_ms", "planned_ms", "packetisation_ms", "ratio"),
    *("expected", "delivered", "repaired", "exact", "digests_equal", "steps", "trustworthy", "reasons"),
)
_MEMORY_COLUMNS = ("round", "island", "ms", "slots", "memory_gb")
_MIXING_COLUMNS = ("round", "island", "contributor", "weight")
_REPORTED_PACKAGES = ("testbed", "numpy", "networkx", "pulp", "highspy", "pyroute2", "scikit-learn", "torch")


class RunDirectory:
    """Writes into one run's directory; each file is complete after each call, however the run ends.

    Whatever cannot be written raises RunFailed: a full disk ends the run, and leaves what was written before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self.logs.mkdir()
        self._first_start_ns: int | None = None

    def event(self, kind: str, **fields: Any) -> None:
        """Append one event with its time to events.jsonl; from any thread."""
        self._append(EVENTS, json.dumps({"monotonic_ns": time.monotonic_ns(), "event": kind, **fields}) + "\n")

    def manifest(self, settings: RunSettings, run_id: str, topology: dict[str, Any], plan: dict[str, Any]) -> None:
        """Write what it takes to do the same run again."""
        content = {
            "run_id": run_id,
            "started": datetime.now(UTC).isoformat(),
            "settings": {
                **settings_to_json(settings),
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

    def round(self, record: RoundRecord, strain: Strain, scale: Scale) -> None:
        """Append a line to rounds.csv, times undilated."""
        if self._first_start_ns is None:
            self._first_start_ns = record.start_ns
            self._append(_ROUNDS, _csv([_ROUND_COLUMNS]))
        times_ns = (record.completion_ns, record.planned_ns, record.packetisation_ns)
        row = [
            record.number,
            record.epoch,
            record.phase,
            round(scale.undilated_ms(record.start_ns - self._first_start_ns), 3),
            *(round(scale.undilated_ms(time_ns), 3) for time_ns in times_ns),
            round(record.ratio, 5),
            record.total("expected"),
            record.total("delivered"),
            record.total("repaired"),
            record.exact,
            record.digests_equal,
            record.steps,
            strain.trustworthy,
            "; ".join(strain.reasons),
        ]
        self._append(_ROUNDS, _csv([row]))

    def memory(self, record: RoundRecord, scale: Scale, slot_bytes: int) -> None:
        """Append to memory.csv: the slots in use at each edge over time, from the round's start on, undilated."""
        rows: list[Sequence[Any]] = [] if (self.path / _MEMORY).exists() else [_MEMORY_COLUMNS]
        for island, report in sorted(record.retired.items()):
            for time_ns, slots in report["occupancy"]:
                ms = scale.undilated_ms(time_ns - record.start_ns)
                memory_gb = scale.full_size_gb(slots * slot_bytes)
                rows.append((record.number, island, round(ms, 3), slots, round(memory_gb, 6)))
        self._append(_MEMORY, _csv(rows))

    def mixing(self, record: RoundRecord, islands: Sequence[str]) -> None:
        """Append to mixing.csv: the weight of each contributor in what each island applied."""
        rows: list[Sequence[Any]] = [] if (self.path / _MIXING).exists() else [_MIXING_COLUMNS]
        for receiver, contributor in zip(*record.mixing.nonzero(), strict=True):
            weight = float(record.mixing[receiver, contributor])
            rows.append((record.number, islands[receiver], islands[contributor], weight))
        self._append(_MIXING, _csv(rows))

    def summary(self, summary: dict[str, Any]) -> None:
        self._write_json("summary.json", summary)

    def give_to_caller(self) -> None:
        """Make the files belong to the user who called sudo."""
        give_to_caller(self.path)

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        unfinished = self.path / f".{name}"
        with self._writing():
            try:
                unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
                unfinished.rename(self.path / name)
            except OSError:
                unfinished.unlink(missing_ok=True)
                raise

    def _append(self, name: str, text: str) -> None:
        data = text.encode()
        with self._writing(), (self.path / name).open("ab", buffering=0) as file:
            end = file.tell()
            try:
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(end)  # half a line would be no line
                raise

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunFailed(
                f"run directory {self.path}: {error.strerror}; it holds whole what was written before"
            ) from error


def give_to_caller(directory: Path) -> None:
    """Make a directory of ours, and the `runs` that it may be in, belong to the user who called sudo."""
    if "SUDO_UID" not in os.environ:
        return
    owner = int(os.environ["SUDO_UID"]), int(os.environ.get("SUDO_GID", "-1"))
    for path in (directory, *directory.rglob("*")):
        os.chown(path, *owner, follow_symlinks=False)
    if directory.parent.name == "runs" and directory.parent.stat().st_uid == 0:
        os.chown(directory.parent, *owner)


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()


def check_run_directory(out: Path | None) -> None:
    """Raise TestbedError if `out` cannot become a run directory. Changes nothing."""
    if out is None:
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise TestbedError(f"--out {out}: not an empty directory; name a new one")
    if not out.resolve().parent.is_dir():
        raise TestbedError(f"--out {out}: there is no directory {out.resolve().parent}; make it first")


def make_run_directory(path: Path, out: Path | None) -> RunDirectory:
    """Make the run directory; it may be there already if the user named it with `out`. Raises TestbedError."""
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
