"""The network namespace in which frames are on their way.

Each link has a port there for each of its ends. What arrives at one port leaves by the other; the port that sends has
the physics of its direction. The nodes' own interfaces stay plain: a node's socket does not block when a link's queue
is full, its captures show frames when they are sent and not when they have arrived, and its own pacing has the
interface to itself.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pyroute2 import IPRoute

from testbed.links.interface import LinkError
from testbed.links.veth import in_namespace
from testbed.network.namespaces import new_namespace, write_sysctls

Result = TypeVar("Result")

PORT_GROUP = 1
# Ports without addresses still would solicit neighbours and join groups, over the links.
_QUIET = {"ipv6.conf.all.disable_ipv6": "1", "ipv6.conf.default.disable_ipv6": "1"}
_START_LIMIT_S = 10


@dataclass(frozen=True)
class PortTraffic:
    """What the kernel counted at a port: frames sent to its node, and frames that the node's kernel did not take."""

    frames: int
    bytes: int
    refused: int


class Line:
    """A network namespace that lives until it is closed, or until this process ends.

    A thread keeps it: no process to lose, nothing to clean up after one that was killed.
    """

    def __init__(self) -> None:
        self._closing = threading.Event()
        self._ready = threading.Event()
        self._error: OSError | None = None
        self.pid = 0  # the thread's own number; the kernel takes it where it takes a process's
        self._thread = threading.Thread(target=self._live, name="link-namespace", daemon=True)
        self._thread.start()
        self._ready.wait(_START_LIMIT_S)
        if self._error is not None or not self.pid:
            self._closing.set()
            reason = self._error.strerror if self._error is not None else "it takes too long"
            raise LinkError(f"cannot make a network namespace for the links ({reason}); run with sudo")

    def _live(self) -> None:
        try:
            new_namespace()
            write_sysctls(_QUIET)
            self.pid = threading.get_native_id()
        except OSError as error:
            self._error = error
        self._ready.set()
        self._closing.wait()

    def act(self, act: Callable[[], Result]) -> Result:
        """Run a function inside the namespace. Raises LinkError if the links are closed."""
        if self._closing.is_set():
            raise LinkError("the links are closed")
        return in_namespace(self.pid, act)

    def close(self) -> None:
        """Remove the ports, and with them the nodes' interfaces; end the namespace. Safe to call twice."""
        if self._closing.is_set():
            return
        try:
            self.act(_remove_ports)
        finally:
            self._closing.set()
            self._thread.join()


def port_indices() -> dict[str, int]:
    """The numbers of this namespace's ports by name."""
    with IPRoute() as route:
        return {link.get_attr("IFLA_IFNAME"): link["index"] for link in route.get_links()}


def set_ports_up(ports: list[int], up: bool) -> None:
    """Take ports of this namespace down, which takes the carrier from the nodes' interfaces, or up again."""
    with IPRoute() as route:
        for port in ports:
            route.link("set", index=port, state="up" if up else "down")


def port_traffic() -> dict[str, PortTraffic]:
    """What this namespace's ports have counted, by name."""
    traffic = {}
    with open("/proc/thread-self/net/dev", encoding="ascii") as table:
        for line in list(table)[2:]:
            name, _, numbers = line.partition(":")
            # Eight columns of what was received, then bytes, frames, errors and drops of what was sent.
            sent = [int(number) for number in numbers.split()[8:12]]
            traffic[name.strip()] = PortTraffic(frames=sent[1], bytes=sent[0], refused=sent[3])
    return traffic


def _remove_ports() -> None:
    with IPRoute() as route:
        for link in list(route.get_links()):
            if link.get_attr("IFLA_GROUP") == PORT_GROUP:
                route.link("del", index=link["index"])
