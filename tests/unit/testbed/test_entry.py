"""The way in: one line, with the fix, where the packages are missing."""

import subprocess
import sys
from pathlib import Path

import testbed

PROJECT = Path(testbed.__file__).parent.parent


def test_interpreter_without_the_packages_gets_one_line_with_the_fix() -> None:
    # -S: without the site packages, as another python3 on PATH would be.
    done = subprocess.run(
        [sys.executable, "-S", "-m", "testbed", "run"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "has no module" in done.stderr
    assert "vagrant/provision.sh" in done.stderr
