"""Runs in the background, for tests that act on them."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from testbed.run.state import STATE_ROOT
from tests.netns.testbed.command import command_line, leftovers

WAIT_S = 90


class Running:
    """A run in the background; `wait_for` reads what it prints."""

    def __init__(self, run_dir: Path, *options: str, within: Sequence[str] = ()):
        """`within`: a command that runs the command line that follows it."""
        self.run_dir = run_dir
        self.process = subprocess.Popen(
            [*within, *command_line("run", "--workload", "synthetic", "--out", str(run_dir), *options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, beginning: str) -> None:
        assert self.process.stdout is not None
        deadline = time.monotonic() + WAIT_S
        for line in self.process.stdout:
            if line.startswith(beginning):
                return
            assert time.monotonic() < deadline
        pytest.fail(f"the run ended before it printed {beginning!r}: {self.process.communicate()[1]}")

    def finish(self) -> tuple[int, dict[str, Any]]:
        """Exit code and summary."""
        code, errors = self.end()
        assert not errors, errors
        return code, json.loads((self.run_dir / "summary.json").read_text(encoding="utf-8"))

    def end(self) -> tuple[int, str]:
        """Wait for it; exit code and what it said on standard error."""
        _, errors = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, errors

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.run_dir / "events.jsonl").read_text(encoding="utf-8").splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    @property
    def run_id(self) -> str:
        """From its mark, which is there before its run directory; else from what it left."""
        for owner in STATE_ROOT.glob("[!.]*/owner.json"):
            if json.loads(owner.read_text(encoding="utf-8"))["run_dir"] == str(self.run_dir):
                return owner.parent.name
        manifest = json.loads((self.run_dir / "manifest.json").read_text(encoding="utf-8"))
        return str(manifest["run_id"])


@contextmanager
def running(run_dir: Path, *options: str, within: Sequence[str] = ()) -> Iterator[Running]:
    """A run that is interrupted if it has not ended by then, and has left nothing behind."""
    run = Running(run_dir, *options, within=within)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGINT)
            run.process.communicate(timeout=WAIT_S)
    assert run.run_id not in leftovers()["marks"]


def processes_of(run: Running, word: str) -> list[int]:
    """Processes of the run with this word among their arguments."""
    found = []
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in words and f"TESTBED_RUN={run.run_id}".encode() in environment:
            found.append(int(process.name))
    return found


def datagrams_at(pid: int) -> int:
    """UDP datagrams that were delivered in the process's namespace so far."""
    names, counts = (
        line.split() for line in Path(f"/proc/{pid}/net/snmp").read_text().splitlines() if line.startswith("Udp:")
    )
    return int(counts[names.index("InDatagrams")])


def kill_when_reached(pid: int, datagrams: int) -> None:
    """Kill a process as soon as so many datagrams more have been delivered in its namespace."""
    before = datagrams_at(pid)
    deadline = time.monotonic() + WAIT_S
    while datagrams_at(pid) < before + datagrams:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
