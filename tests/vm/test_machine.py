"""The virtual machine itself: what a command gives back, and that nothing is left when it ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.vm.machine import Machine, bounded

LIMIT_S = 120


def test_a_command_gives_its_status_and_output(machine: Machine) -> None:
    done = machine.run(["sh", "-c", "echo out; echo err >&2; exit 7"], LIMIT_S)
    assert (done.status, done.stdout, done.stderr) == (7, "out\n", "err\n")


def test_long_output_comes_whole(machine: Machine) -> None:
    done = machine.run(["/usr/bin/python3", "-c", "print(*range(200_000))"], LIMIT_S)
    assert done.stdout.split() == [str(number) for number in range(200_000)]


def test_a_command_that_does_not_end_is_ended(machine: Machine) -> None:
    assert machine.run(["sleep", "1000"], 2).status == 124
    assert machine.run(["true"], LIMIT_S).status == 0


def test_a_command_that_is_not_there_is_said(machine: Machine) -> None:
    done = machine.run(["/no/such/command"], LIMIT_S)
    assert done.status == 127
    assert "/no/such/command" in done.stderr


def test_what_is_bounded_ends_with_its_owner(tmp_path: Path) -> None:
    """The way in which the emulator is started, with another program: however its owner ends, it ends."""
    mark = tmp_path / "pid"
    program = ["sh", "-c", f"echo $$ >{mark}; exec sleep 100"]
    script = f"import subprocess, time; subprocess.Popen({bounded(program, 100)!r}); time.sleep(100)"
    owner = subprocess.Popen([sys.executable, "-c", script])
    try:
        until(lambda: mark.exists() and mark.read_text().strip() != "")
        pid = int(mark.read_text())
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        until(lambda: not running(pid))
    finally:
        owner.kill()
        owner.wait()


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
