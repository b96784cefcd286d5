"""However a run ends, it ends cleanly: interrupted, killed, or refused before it began."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.run.processes import RUN_ID_VARIABLE
from tests.netns.testbed.command import call_testbed, command_line, leftovers

WAIT_S = 60


def _start(run_dir: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command_line("run", "--workload", "synthetic", "--rounds", "1000", "--out", str(run_dir)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _wait_for_line(process: "subprocess.Popen[str]", beginning: str) -> None:
    assert process.stdout is not None
    deadline = time.monotonic() + WAIT_S
    for line in process.stdout:
        if line.startswith(beginning):
            return
        assert time.monotonic() < deadline
    pytest.fail(f"the run ended before it printed {beginning!r}: {process.communicate()[1]}")


@pytest.mark.parametrize("moment", ["plan:", "network:", "ready:", "round"])
def test_interrupt_at_any_moment_ends_cleanly(moment: str, tmp_path: Path) -> None:
    before = leftovers()
    process = _start(tmp_path / "run")
    _wait_for_line(process, moment)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert errors == "testbed: interrupted; everything was cleaned up\n"
    assert leftovers() == before


@pytest.mark.parametrize("moment", ["network:", "round"])
def test_kill_leaves_nothing_that_clean_does_not_remove(moment: str, tmp_path: Path) -> None:
    before = leftovers()
    process = _start(tmp_path / "run")
    _wait_for_line(process, moment)
    run_ids = leftovers()["marks"] - before["marks"]
    assert len(run_ids) == 1
    process.kill()
    process.wait(WAIT_S)
    cleaned = call_testbed("clean")
    assert cleaned.code == 0
    assert all(run_id in cleaned.output for run_id in run_ids)
    assert leftovers() == before


def test_clean_leaves_a_living_run_alone(tmp_path: Path) -> None:
    process = _start(tmp_path / "run")
    try:
        _wait_for_line(process, "round")
        during = leftovers()
        assert call_testbed("clean").code == 0
        _wait_for_line(process, "round")
        assert leftovers()["marks"] == during["marks"]
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=WAIT_S)


def test_two_runs_at_once_are_both_exact(tmp_path: Path) -> None:
    before = leftovers()
    runs = [
        subprocess.Popen(
            command_line(
                *("run", "--workload", "synthetic", "--policy", "regional", "--memory-gb", "1", "--rounds", "3"),
                *("--out", str(tmp_path / name)),
            ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    for run in runs:
        _, errors = run.communicate(timeout=WAIT_S)
        assert run.returncode == 0, errors
    assert leftovers() == before


def _file(content: str) -> Callable[[Path], str]:
    def make(directory: Path) -> str:
        path = directory / "topology.json"
        path.write_text(content, encoding="utf-8")
        return str(path)

    return make


BAD_INPUT = {
    "unknown policy": (["--policy", "best"], "best"),
    "policy without enough memory": (["--memory-gb", "0"], "all-to-all"),
    "negative memory": (["--memory-gb", "-1"], "--memory-gb"),
    "no rounds": (["--rounds", "0"], "--rounds"),
    "payload that is no number": (["--payload-gb", "nan"], "--payload-gb"),
    "payload below a frame": (["--payload-gb", "1e-9"], "--payload-gb"),
    "rate scale 0": (["--rate-scale", "0"], "--rate-scale"),
    "rate scale beyond the links": (["--rate-scale", "10"], "rate"),
    "dilation below 1": (["--time-dilation", "0.5"], "--time-dilation"),
    "unknown workload": (["--workload", "chess"], "chess"),
    "workload larger than the payload": (["--payload-gb", "1"], "405610"),
    "unknown engine": (["--engine", "fpga9"], "fpga9"),
    "unknown link kind": (["--links", "string"], "--links"),
    "unknown multicast plane": (["--multicast", "carrier-pigeon"], "--multicast"),
    "topology that does not exist": (["--topology", "no/such/file.json"], "no/such/file.json"),
    "topology that does not parse": (["--topology", _file("{")], "topology.json"),
    "topology with an unknown key": (
        ["--topology", _file('{"directed": false, "nodes": [{"id": "a", "colour": "red"}], "edges": []}')],
        "colour",
    ),
    "run directory that is not empty": (["--out", _file("")], "--out"),
}


@pytest.mark.parametrize("case", sorted(BAD_INPUT))
def test_bad_input_is_one_line_and_changes_nothing(case: str, tmp_path: Path) -> None:
    options, named = BAD_INPUT[case]
    arguments = [option if isinstance(option, str) else option(tmp_path) for option in options]
    before = leftovers()
    refused = call_testbed("run", *arguments, directory=tmp_path)
    assert refused.code == 2, refused
    assert refused.output == ""
    assert re.fullmatch(r"testbed[^\n]*\n", refused.errors), refused.errors
    assert named in refused.errors
    assert leftovers() == before
    assert not (tmp_path / "runs").exists()


def test_without_root_run_is_refused_in_one_line(tmp_path: Path) -> None:
    command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *command_line("run")]
    environment = {name: value for name, value in os.environ.items() if name != RUN_ID_VARIABLE}
    refused = subprocess.run(
        command, cwd="/", env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "needs root" in refused.stderr
