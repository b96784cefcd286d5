"""Looking into a running network: `exec` and Mininet's command line."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from testbed.multicast.frr import missing_package
from tests.netns.testbed.command import call_testbed, command_line, leftovers

WAIT_S = 60


@pytest.mark.skipif(missing_package() is not None, reason=str(missing_package()))
def test_exec_and_the_command_line_work_on_the_running_network(tmp_path: Path) -> None:
    before = leftovers()
    process = subprocess.Popen(
        command_line("run", "--workload", "synthetic", "--rounds", "1", "--cli", "--out", str(tmp_path / "run")),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        deadline = time.monotonic() + WAIT_S
        for line in process.stdout:
            assert time.monotonic() < deadline, line
            if line.startswith("round"):
                break
        else:
            pytest.fail("the run ended before its first round")
        (run_id,) = leftovers()["marks"] - before["marks"]
        routes = call_testbed("exec", "--run", run_id, "lon", "vtysh", "-c", "show ip mroute")
        assert routes.code == 0, routes.errors
        assert "232.1.0.1" in routes.output
        assert call_testbed("exec", "--run", run_id, "nyc-h1", "sh", "-c", "exit 7").code == 7
        unknown = call_testbed("exec", "--run", run_id, "oslo", "true")
        assert unknown.code == 2
        assert "there is no node oslo" in unknown.errors
        process.stdin.write("nodes\nnet\nnyc-h1 ping -c 1 tyo-h1\niperf lon-h1 ams-h1\nexit\n")
        process.stdin.flush()
        said, _ = process.communicate(timeout=WAIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(WAIT_S)
    assert process.returncode == 0, said
    assert "nyc-h1" in said
    assert "nyc-h1 e0:h0" in said
    assert "1 packets transmitted, 1 received" in said
    assert "bits/sec" in said
    assert leftovers() == before


def test_exec_without_a_run_is_refused_in_one_line() -> None:
    refused = call_testbed("exec", "--run", "0000", "nyc", "true")
    assert refused.code == 2
    assert refused.errors.count("\n") == 1
