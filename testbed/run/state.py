"""What a run leaves on the machine while it lives, marked with its id, and the removal of what a killed run left.

A run has a state directory /run/testbed/ID with the identity of its main process, and shared memory in
/dev/shm/testbed-ID. Each of its processes carries TESTBED_RUN=ID in its environment; namespaces and interfaces are
unnamed and end with the processes in them. Nothing without the mark is ever touched.
"""

import json
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.run.processes import RUN_ID_VARIABLE

STATE_ROOT = Path("/run/testbed")
MEMORY_ROOT = Path("/dev/shm")
_MEMORY_PREFIX = "testbed-"
_NODES = "nodes.json"
_KILL_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class RunState:
    """A run's mark on the machine."""

    run_id: str
    directory: Path
    memory: Path

    def note_nodes(self, pids: Mapping[str, int]) -> None:
        """Write down the nodes, each with a process in its namespaces, for commands that act on the run."""
        unfinished = self.directory / f".{_NODES}"
        unfinished.write_text(json.dumps(dict(pids)), encoding="utf-8")
        unfinished.rename(self.directory / _NODES)


def new_run() -> RunState:
    """A fresh id and its places; nothing is marked yet."""
    run_id = secrets.token_hex(4)
    return RunState(run_id, STATE_ROOT / run_id, MEMORY_ROOT / f"{_MEMORY_PREFIX}{run_id}")


def mark_run(state: RunState, run_dir: Path) -> None:
    """Mark this process, and all that it starts from here on, as the run's. Raises OSError."""
    os.environ[RUN_ID_VARIABLE] = state.run_id
    owner = {"pid": os.getpid(), "start_ticks": _start_ticks(os.getpid()), "run_dir": str(run_dir)}
    # Renamed into place whole: a mark without its owner would look abandoned.
    unfinished = STATE_ROOT / f".{state.run_id}"
    unfinished.mkdir(parents=True)
    (unfinished / "owner.json").write_text(json.dumps(owner), encoding="utf-8")
    unfinished.rename(state.directory)
    state.memory.mkdir(mode=0o700)


@contextmanager
def marked_run(run_dir: Path | None = None, at_end: Callable[[], None] = lambda: None) -> Iterator[RunState]:
    """Mark a new run on the machine; on the way out nothing of it remains, however it ended, and `at_end` is called."""
    state = new_run()
    try:
        mark_run(state, run_dir or state.directory)
        yield state
    finally:
        # The user's second Ctrl-C must not stop the clean-up that the first one started.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        release_run(state.run_id)
        at_end()
        signal.signal(signal.SIGINT, previous)


def release_run(run_id: str) -> int:
    """End every process of a run but this one, and remove what it left; returns the number of processes ended."""
    ended: set[int] = set()
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while (pids := _marked_processes(run_id)) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                ended.add(pid)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    shutil.rmtree(MEMORY_ROOT / f"{_MEMORY_PREFIX}{run_id}", ignore_errors=True)
    for directory in (STATE_ROOT / run_id, STATE_ROOT / f".{run_id}"):
        shutil.rmtree(directory, ignore_errors=True)
    if os.environ.get(RUN_ID_VARIABLE) == run_id:
        del os.environ[RUN_ID_VARIABLE]
    return len(ended)


def living_runs() -> dict[str, dict[str, int]]:
    """The nodes of each run that is alive, by run id; none while it has no network yet."""
    nodes = {}
    for directory in sorted(STATE_ROOT.glob("[!.]*")):
        if _alive(directory.name):
            path = directory / _NODES
            nodes[directory.name] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return nodes


def abandoned_runs() -> list[str]:
    """Ids of runs whose main process is gone."""
    known = {path.name for path in STATE_ROOT.glob("[!.]*")}
    known |= {path.name.removeprefix(_MEMORY_PREFIX) for path in MEMORY_ROOT.glob(_MEMORY_PREFIX + "*")}
    return sorted(run_id for run_id in known if not _alive(run_id))


def _alive(run_id: str) -> bool:
    try:
        owner = json.loads((STATE_ROOT / run_id / "owner.json").read_text(encoding="utf-8"))
        return _start_ticks(int(owner["pid"])) == int(owner["start_ticks"])
    except (OSError, ValueError, KeyError):
        return False


def _start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot: with its pid, its identity."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return int(stat.rpartition(")")[2].split()[19])


def _marked_processes(run_id: str) -> list[int]:
    mark = f"{RUN_ID_VARIABLE}={run_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0") and not _is_zombie(entry):
                found.append(int(entry.name))
        except OSError:
            continue  # it has just ended
    return found


def _is_zombie(process: Path) -> bool:
    return (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
