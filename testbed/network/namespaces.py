"""Doing things inside another process's network namespace."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def enter(descriptor: int) -> None:
    """Move the calling thread into the network namespace that the file descriptor stands for. Raises OSError."""
    if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"entering a network namespace: {os.strerror(error)}")


@contextmanager
def entered(pid: int) -> Iterator[None]:
    """Run the body in the network namespace of process `pid`: sockets opened there stay there.

    Moves the calling thread only. Raises OSError.
    """
    # The way back is kept open: a look-up of it from inside the other namespace may be denied.
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        other = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter(other)
        finally:
            os.close(other)
        try:
            yield
        finally:
            enter(own)
    finally:
        os.close(own)


def new_namespace() -> None:
    """Move the calling thread into a new network namespace, which ends with its last user. Raises OSError."""
    if _libc.unshare(_CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"making a network namespace: {os.strerror(error)}")


def write_sysctls(settings: dict[str, str]) -> None:
    """Set `net.…` sysctls (dotted names without `net.`) of the namespace the calling thread is in. Raises OSError."""
    for name, value in settings.items():
        with open("/proc/sys/net/" + name.replace(".", "/"), "w", encoding="ascii") as file:
            file.write(value)
