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

# Processes of our runs inherit it, and so are told from those of other runs on this machine.
_TEST_VARIABLE = "TESTBED_TEST"
os.environ[_TEST_VARIABLE] = str(os.getpid())
_seen_run_ids: set[str] = set()
own_directories: set[Path] = set()
"""Where this test process's runs have their directories."""


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
    """What runs of this test process have on the machine, and all interfaces and named namespaces that there are.

    Runs of other users are theirs: they may come and go meanwhile.
    """
    processes, run_ids = set(), set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"{_TEST_VARIABLE}={os.getpid()}".encode() in environment:
            processes.add(process.name)
            prefix = f"{RUN_ID_VARIABLE}=".encode()
            run_ids |= {word[len(prefix) :].decode() for word in environment if word.startswith(prefix)}
    run_ids |= {path.parent.name for path in STATE_ROOT.glob("*/owner.json") if _is_ours(path)}
    _seen_run_ids.update(run_ids)
    return {
        "interfaces": set(os.listdir("/sys/class/net")),
        "processes": processes,
        "marks": {path.name for path in STATE_ROOT.glob("*") if path.name in _seen_run_ids},
        "memory": {path.name for path in MEMORY_ROOT.glob("testbed-*") if path.name[8:] in _seen_run_ids},
    }


def _is_ours(owner: Path) -> bool:
    try:
        run_dir = Path(json.loads(owner.read_text(encoding="utf-8"))["run_dir"])
    except (OSError, ValueError):
        return False
    return any(run_dir.is_relative_to(directory) for directory in own_directories)
