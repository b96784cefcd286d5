"""Marks of runs: what is a run's is found and removed, and nothing else."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.run import state
from testbed.run.processes import RUN_ID_VARIABLE


@pytest.fixture(autouse=True)
def _own_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(state, "STATE_ROOT", tmp_path / "state")
    monkeypatch.setattr(state, "MEMORY_ROOT", tmp_path / "memory")
    (tmp_path / "memory").mkdir()
    monkeypatch.delenv(RUN_ID_VARIABLE, raising=False)
    yield
    os.environ.pop(RUN_ID_VARIABLE, None)


def _sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["sleep", "60"])


def test_living_run_is_not_abandoned_and_ends_without_trace(tmp_path: Path) -> None:
    run = state.new_run()
    state.mark_run(run, tmp_path)
    assert state.abandoned_runs() == []
    child = _sleeper()
    assert state.release_run(run.run_id) == 1
    assert child.wait(5) == -signal.SIGKILL
    assert not run.directory.exists()
    assert not run.memory.exists()
    assert RUN_ID_VARIABLE not in os.environ


def test_release_leaves_processes_of_others_alone(tmp_path: Path) -> None:
    stranger = _sleeper()
    try:
        run = state.new_run()
        state.mark_run(run, tmp_path)
        assert state.release_run(run.run_id) == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_run_whose_main_process_is_gone_is_abandoned(tmp_path: Path) -> None:
    run = state.new_run()
    state.mark_run(run, tmp_path)
    owner = json.loads((run.directory / "owner.json").read_text(encoding="utf-8"))
    # The same pid, taken by a later process.
    (run.directory / "owner.json").write_text(json.dumps(owner | {"start_ticks": 1}), encoding="utf-8")
    assert state.abandoned_runs() == [run.run_id]


def test_memory_without_a_mark_is_abandoned() -> None:
    (state.MEMORY_ROOT / "testbed-0badcafe").mkdir()
    (state.MEMORY_ROOT / "somebody-elses").mkdir()
    assert state.abandoned_runs() == ["0badcafe"]
