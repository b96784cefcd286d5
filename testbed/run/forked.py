"""What makes a forked process one of its own, as if it had been started by a command."""

import ctypes
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_ARG_START, _ARG_END = 45, 46  # fields of /proc/PID/stat after the name
_libc = ctypes.CDLL(None, use_errno=True)


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent, process `parent`, ends, however it does. Raises OSError."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"asking for the end with the parent: {os.strerror(error)}")
    if os.getppid() != parent:  # it has ended before it was asked
        os.kill(os.getpid(), signal.SIGKILL)


def become_urgent() -> None:
    """Come before all that trains, and after all that moves packets; if that is allowed."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def set_title(name: str, command: list[str]) -> None:
    """Be shown under this name (its first 15 bytes), and with this command line as far as the present one is long."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
    stat = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    start, end = int(stat[_ARG_START]), int(stat[_ARG_END])
    # The kernel reads the command line where it laid the words down when the program was executed.
    words = b"\0".join(word.encode() for word in command)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, words, len(words))


def draw_own_numbers() -> None:
    """Have generators that nobody has seeded give other numbers here than in the processes forked beside this one."""
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
