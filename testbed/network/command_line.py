"""Mininet's command line on a running network."""

import subprocess
import time

from mininet.cli import CLI
from mininet.log import error, output, setLogLevel
from mininet.net import Mininet

_IPERF_PORT = "5001"
_IPERF_S = 5
_IPERF_START_S = 0.5
_IPERF_LIMIT_S = 60


class NetworkCommandLine(CLI):  # type: ignore[misc]
    """Mininet's command line; node names may have a dash in them, as `nyc-h1` has."""

    prompt = "testbed> "
    identchars = CLI.identchars + "-"

    def do_iperf(self, line: str) -> None:
        """Measure TCP throughput from one host to another: iperf nyc-h1 tyo-h1"""
        # Mininet's own kills every iperf of the machine by name, and waits for output that this iperf does not give.
        names = line.split()
        if len(names) != 2 or not all(name in self.mn for name in names):
            error("iperf wants two hosts, for example: iperf nyc-h1 tyo-h1\n")
            return
        client, server = (self.mn[name] for name in names)
        listening = server.popen(["iperf", "-s", "-p", _IPERF_PORT])
        try:
            time.sleep(_IPERF_START_S)
            address = server.defaultIntf().updateIP()
            command = ["iperf", "-c", address, "-p", _IPERF_PORT, "-t", str(_IPERF_S)]
            said, _ = client.popen(command).communicate(timeout=_IPERF_LIMIT_S)
            output(said.decode("utf-8", "replace"))
        except subprocess.TimeoutExpired:
            error(f"iperf has not ended within {_IPERF_LIMIT_S} s\n")
        finally:
            listening.kill()
            listening.communicate()


def open_command_line(mininet: Mininet, script: str | None = None) -> None:
    """Read commands from the terminal, or from the file `script`, until `exit`."""
    # At its usual level Mininet keeps the output of commands to itself.
    setLogLevel("info")
    NetworkCommandLine(mininet, script=script)
