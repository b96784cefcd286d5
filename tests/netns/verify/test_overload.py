"""Overload is detected, not hidden: rounds under it are marked, and others are not."""

import csv
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.netns.testbed.command import Finished, command_line, run_json

TOPOLOGY = {
    "directed": False,
    "nodes": [{"id": name} for name in "abc"],
    "edges": [{"source": a, "target": b, "one_way_delay_ms": 10, "rate_gbps": 100} for a, b in ("ab", "bc", "ac")],
}
HOG_PRIORITY = 60  # above the links
HOG_MS, PAUSE_MS = 60, 40  # a round lasts longer than a pause: none can slip through
WAIT_S = 120


def _options(directory: Path, rounds: int) -> tuple[str, ...]:
    topology = directory / "three.json"
    topology.write_text(json.dumps(TOPOLOGY), encoding="utf-8")
    payload = ("--workload", "synthetic", "--payload-gb", "1", "--rounds", str(rounds))
    return ("--topology", str(topology), *payload)


def _run_with_hogs(directory: Path, rounds: int) -> Finished:
    """A run that has the machine for itself until its network has been proven, and not in its rounds."""
    command = command_line("run", "--json", "--out", str(directory / "run"), *_options(directory, rounds))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline()]
        while lines[-1] and not lines[-1].startswith("ready:"):
            lines.append(process.stderr.readline())
        with _hogs():
            output, errors = process.communicate(timeout=WAIT_S)
    return Finished(process.returncode, output, "".join(lines) + errors)


@contextmanager
def _hogs() -> Iterator[None]:
    """On every processor something that takes it away for 60 ms at a time."""
    pids = [_hog(cpu) for cpu in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _hog(cpu: int) -> int:
    pid = os.fork()
    if pid == 0:
        os.sched_setaffinity(0, {cpu})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(HOG_PRIORITY))
        signal.alarm(60)  # should nobody end it
        while True:
            end_ns = time.monotonic_ns() + HOG_MS * 1_000_000
            while time.monotonic_ns() < end_ns:
                pass
            time.sleep(PAUSE_MS / 1e3)
    return pid


def test_rounds_under_overload_are_marked_everywhere(tmp_path: Path) -> None:
    finished = _run_with_hogs(tmp_path, rounds=3)
    summary = finished.document
    assert summary["trustworthy"] is False
    assert [untrusted["round"] for untrusted in summary["untrusted_rounds"]] == [0, 1, 2]
    reasons = "; ".join(summary["untrusted_rounds"][0]["reasons"])
    assert "late" in reasons or "dropped" in reasons
    warning = next(text for text in summary["warnings"] if "not trustworthy" in text)
    assert warning.startswith("3 of 3 rounds")
    assert "--time-dilation" in warning
    assert finished.errors.count("NOT TRUSTWORTHY") == 3
    with (tmp_path / "run" / "rounds.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["trustworthy"] for row in rows] == ["False"] * 3
    assert all(row["reasons"] for row in rows)


def test_what_is_marked_has_a_reason_and_the_rest_has_none(tmp_path: Path) -> None:
    """On an idle machine no round is marked. Others may use this one: so not every round may be, and none in vain."""
    summary = run_json(tmp_path / "run", *_options(tmp_path, rounds=12)).document
    marked = {untrusted["round"] for untrusted in summary["untrusted_rounds"]}
    assert summary["trustworthy"] is not bool(marked)
    assert len(marked) < 12
    lines = (tmp_path / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    rounds = [event for event in map(json.loads, lines) if event["event"] == "round"]
    for event in rounds:
        strain = event["strain"]
        quiet = (
            strain["link_lateness_p99_ms"] <= 1
            and strain["link_lateness_max_ms"] <= 10
            and strain["send_lateness_p99_ms"] <= 1
            and strain["send_lateness_max_ms"] <= 10
            and strain["receive_wait_max_ms"] <= 10
            and strain["cpu_wait_mean_ms"] <= 0.4
            and strain["link_drops"] == strain["socket_overflows"] == 0
        )
        assert quiet is (event["round"] not in marked)
