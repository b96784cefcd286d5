"""FRR's daemons on one router: configuration, start, questions.

A router's daemons see private /run, /var/tmp and /etc/frr: the mounts are in the namespace of its Mininet node, and end
with it. So FRR's file paths, which are the machine's, are used by nobody twice, `vtysh` needs no options inside a node,
and nothing is left behind. /etc/frr is a directory of the run directory.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from testbed.run.processes import RUN_ID_VARIABLE

DAEMONS = Path("/usr/lib/frr")
_GROUP = "frrvty"  # of the sockets for vtysh
_QUERY_TIMEOUT_S = 5.0
_ANSWER_END = b"\0\0\0"
# Run as root (in the router's namespaces only): a daemon that changes its user would not die with the run.
_START = ("setpriv", "--pdeathsig", "KILL", "--regid", _GROUP, "--clear-groups", "nsenter")
# A daemon that counts milliseconds must not wait for a processor as others may.
_PRIORITIES = {"bfdd": 6}
_PRIVATE_PLACES = (
    "mount -t tmpfs -o mode=755 testbed /run && mkdir /run/frr && mount -t tmpfs testbed /var/tmp && "
    'mkdir /var/tmp/frr && mount --bind "$0" /etc/frr && exec "$@"'
)


def missing_package(further_daemons: Sequence[str] = ()) -> str | None:
    """Why FRR cannot be used here: one line with the way out; None if it can."""
    for daemon in ("zebra", "pimd", *further_daemons):
        if not os.access(DAEMONS / daemon, os.X_OK):
            return f"FRR's {daemon} is not installed; install the package frr (vagrant/provision.sh does)"
    if shutil.which("mount") is None:
        return "the program mount is missing; install the package mount"
    return None


def preamble(name: str) -> str:
    """What the configurations of all daemons of a router begin with: what they log is kept with the run."""
    return f"hostname {name}\nlog stdout informational\nlog timestamp precision 6\n"


def zebra_configuration(name: str) -> str:
    return preamble(name)


def pim_configuration(name: str, core: Sequence[str], island: str | None) -> str:
    """A router's configuration of pimd: PIM on its `core` interfaces, IGMPv3 on the one to its `island`, if it has one.

    The values are those that were measured: docs/multicast.md.
    """
    lines = [
        # A lost join waits for the next periodic one, and so do a restarted neighbour's trees.
        "ip pim join-prune-interval 5",
    ]
    for interface in core:
        lines += [f"interface {interface}", " ip pim", " ip pim hello 10", "exit"]
    if island is not None:
        lines += [
            f"interface {island}",
            " ip pim",
            " ip pim passive",
            " ip igmp",
            " ip igmp version 3",
            " ip igmp query-interval 10",
            " ip igmp query-max-response-time 10",
            # A leave takes 0.1 s instead of 2 s.
            " ip igmp last-member-query-count 1",
            " ip igmp last-member-query-interval 1",
            "exit",
        ]
    return preamble(name) + "\n".join(lines) + "\n"


class Router:
    """The daemons of one router."""

    def __init__(self, name: str, pid: int, configurations: Mapping[str, str], directory: Path, run_id: str) -> None:
        """`pid` lives in the router's namespaces; `directory` is made, and becomes the router's /etc/frr.

        `configurations` has those of its daemons by name, zebra's first.
        """
        self.name = name
        self.daemons = tuple(configurations)
        self._pid = pid
        self._environment = {**os.environ, RUN_ID_VARIABLE: run_id}
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        directory.mkdir(parents=True)
        for daemon, configuration in configurations.items():
            (directory / f"{daemon}.conf").write_text(configuration, encoding="utf-8")
        (directory / "vtysh.conf").write_text("no service integrated-vtysh-config\n", encoding="utf-8")

    def start_zebra(self) -> None:
        """Give the router its private places and start zebra. Raises OSError."""
        self._start(self.daemons[0], "sh", "-c", _PRIVATE_PLACES, str(self._directory))

    def start_others(self) -> None:
        """Start the other daemons; zebra must be up. Raises OSError."""
        for daemon in self.daemons[1:]:
            self._start(daemon)

    def _start(self, daemon: str, *before: str) -> None:
        command = [*_START, f"--net=/proc/{self._pid}/ns/net", f"--mount=/proc/{self._pid}/ns/mnt", *before]
        command += [str(DAEMONS / daemon), "-f", f"/etc/frr/{daemon}.conf", "-u", "root", "-g", _GROUP]
        command += ["-A", "127.0.0.1", "-P", "0"]
        with (self._directory / f"{daemon}.log").open("wb") as log:
            started = self._processes[daemon] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        if daemon in _PRIORITIES:
            with suppress(PermissionError):
                os.sched_setscheduler(started.pid, os.SCHED_FIFO, os.sched_param(_PRIORITIES[daemon]))

    def is_up(self, daemon: str) -> bool:
        """Whether a daemon that was started takes questions. Raises OSError if it has ended."""
        ended = self.ended(daemon)
        if ended is not None:
            raise OSError(0, ended)
        try:
            with socket.socket(socket.AF_UNIX) as vty:
                vty.connect(self._vty(daemon))
        except OSError:
            return False
        return True

    def ended(self, *daemons: str) -> str | None:
        """Which of these daemons has ended, or of all that were started, and how, in words; None if none has."""
        for daemon in daemons or tuple(self._processes):
            status = self._processes[daemon].poll()
            if status is not None:
                how = f"signal {-status}" if status < 0 else f"status {status}"
                return f"{daemon} of router {self.name} ended with {how}: {self._last_words(daemon)}"
        return None

    def _last_words(self, daemon: str) -> str:
        lines = (self._directory / f"{daemon}.log").read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it gave no reason")

    def ask(self, daemon: str, question: str) -> str:
        """The answer to a `show` command. Raises OSError."""
        with socket.socket(socket.AF_UNIX) as vty:
            vty.settimeout(_QUERY_TIMEOUT_S)
            vty.connect(self._vty(daemon))
            _question(vty, "enable")
            return _question(vty, question)

    def _vty(self, daemon: str) -> str:
        return f"/proc/{self._pid}/root/run/frr/{daemon}.vty"

    def stop(self) -> None:
        """End the daemons at once: their namespaces go as well. Safe to call twice."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()


def _question(vty: socket.socket, text: str) -> str:
    """Ask vtysh's way: text and a zero byte; the answer ends with three zero bytes and a status."""
    vty.sendall(text.encode("ascii") + b"\0")
    answer = b""
    while _ANSWER_END not in answer[-len(_ANSWER_END) - 1 :]:
        part = vty.recv(65536)
        if not part:
            raise OSError(0, f"no answer to {text!r}")
        answer += part
    return answer[: -len(_ANSWER_END) - 1].decode("utf-8", "replace")
