"""The command line as a user calls it, and what it leaves on the machine."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.run.processes import RUN_ID_VARIABLE
from testbed.run.state import MEMORY_ROOT, STATE_ROOT

TIMEOUT_S = 180


@dataclass(frozen=True)
class Finished:
    code: int
    output: str
    errors: str

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.output)
        return document


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "testbed", *arguments]


def call_testbed(*arguments: str, directory: Path | None = None) -> Finished:
    """Run `testbed …` to its end, within TIMEOUT_S."""
    done = subprocess.run(
        command_line(*arguments), cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def run_json(run_dir: Path, *arguments: str) -> Finished:
    """Run `testbed run --json` into `run_dir`."""
    return call_testbed("run", "--json", "--out", str(run_dir), *arguments)


def leftovers() -> dict[str, set[str]]:
    """Everything on this machine that could be a run's: interfaces of this namespace, marks, memory, processes."""
    marked = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{RUN_ID_VARIABLE}=".encode() in (process / "environ").read_bytes():
                marked.add(process.name)
        except OSError:
            continue
    return {
        "interfaces": set(os.listdir("/sys/class/net")),
        "named_namespaces": set(os.listdir("/run/netns")) if Path("/run/netns").is_dir() else set(),
        "marks": {path.name for path in STATE_ROOT.glob("*")},
        "memory": {path.name for path in MEMORY_ROOT.glob("testbed-*")},
        "processes": marked,
    }
