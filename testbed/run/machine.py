"""What the machine must have before anything is built on it."""

import os
import resource
import shutil

from testbed.errors import TestbedError

_TOOLS = {"mnexec": "mininet", "nsenter": "util-linux", "setpriv": "util-linux"}
_FILES_PER_NODE = 12  # a shell's pseudo-terminal, a control channel, and their library's needs


def check_root() -> None:
    """Raise TestbedError without root."""
    if os.geteuid() != 0:
        raise TestbedError("run needs root, to make network namespaces; use sudo testbed run")


def check_machine(nodes: int) -> None:
    """Raise TestbedError if this process cannot build a network of `nodes` nodes. Changes nothing."""
    check_root()
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            raise TestbedError(
                f"the program {tool} is missing; install the package {package} (vagrant/provision.sh does)"
            )
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 64 + _FILES_PER_NODE * nodes
    if allowed < needed:
        raise TestbedError(f"{needed} open files are needed and {allowed} allowed; raise the limit: ulimit -n {needed}")
