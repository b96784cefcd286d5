"""The ring in a virtual machine when it is ended early: its notes are out by then, and its fixtures are taken down."""

import os
import signal
import subprocess
import sys
from pathlib import Path

WAIT_S = 60
_TEST = """
import time
from pathlib import Path
import pytest

@pytest.fixture
def machine(ended_in_order):
    yield
    Path(__file__).with_name("taken-down").touch()

def test_that_lasts(note, machine):
    print("kept for a failure")
    note("netem: all is well")
    time.sleep(100)
"""


def test_notes_come_at_once_and_a_request_to_end_takes_the_machine_down(tmp_path: Path) -> None:
    (tmp_path / "test_lasting.py").write_text(_TEST, encoding="utf-8")
    project = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "pytest", "-p", "tests.vm.conftest", "-p", "no:cacheprovider"]
    ring = subprocess.Popen(
        [*command, "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": project},
    )
    try:
        assert ring.stdout is not None
        said = ""
        while "netem: all is well" not in said:
            character = ring.stdout.read(1)
            assert character, said
            said += character
        assert not (tmp_path / "taken-down").exists()
        ring.send_signal(signal.SIGTERM)
        said += ring.communicate(timeout=WAIT_S)[0]
    finally:
        ring.kill()
        ring.communicate()
    assert ring.returncode == 2
    assert (tmp_path / "taken-down").exists()
    assert said.count("netem: all is well") == 2  # again in the summary
    assert "kept for a failure" not in said
