"""Keeps idle processors ready while links run: they poll for work instead of halting until woken.

Waking a halted processor takes tens of microseconds, and on a virtual machine, where the hypervisor has to do it, up to
milliseconds; that lateness would be the links'. The kernel takes the request (PM QoS, cpu_dma_latency) for as long as
somebody holds the device open.
"""

import os
import struct
from pathlib import Path

DEVICE = Path("/dev/cpu_dma_latency")
_LATENCY_US = struct.pack("=i", 0)


class Awake:
    """The request, in force until `close`. Where the kernel takes none, idle processors stay as they are."""

    def __init__(self) -> None:
        self._device = -1
        try:
            self._device = os.open(DEVICE, os.O_WRONLY | os.O_CLOEXEC)
            os.write(self._device, _LATENCY_US)
        except OSError:
            self.close()

    def close(self) -> None:
        """Let processors sleep again, unless somebody else asks for the same. Safe to call twice."""
        if self._device >= 0:
            os.close(self._device)
            self._device = -1
