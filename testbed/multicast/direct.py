"""The plane `direct`: the testbed itself writes each router's kernel forwarding cache. Any tree; no routing daemon.

A raw IGMP socket opened in the router's namespace is the kernel's multicast routing socket: MRT_ADD_VIF tells it the
router's interfaces, MRT_ADD_MFC the entries (source, group) → arriving interface and outgoing interfaces. The kernel
forgets both when the socket closes, so nothing outlives the run. The structures are those of linux/mroute.h.
"""

import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.topology import Topology
from testbed.multicast.forwarding_cache import interface, wait_for_entries
from testbed.multicast.groups import Forwarding, Tree, forwarding
from testbed.multicast.interface import MulticastError, Site
from testbed.multicast.limits import MAX_INTERFACES, too_many_interfaces
from testbed.network.namespaces import entered, new_namespace

_MRT_INIT, _MRT_ADD_VIF, _MRT_ADD_MFC, _MRT_DEL_MFC = 200, 202, 204, 205
_USE_IFINDEX = 0x8
_VIF = struct.Struct(
    "=HBBIi4s"
)  # struct vifctl: vif, flags, TTL threshold, rate limit, interface index, remote address
_MFC = struct.Struct("=4s4sH32s2xIIIi")  # struct mfcctl: source, group, arriving vif, TTL threshold per vif, counters
_TTL_THRESHOLD = 1


@dataclass
class _Router:
    """One router's routing socket, and its interfaces' numbers: by neighbour, None for the island's own edge."""

    socket: socket.socket
    numbers: dict[str | None, int] = field(default_factory=dict)


class DirectPlane:
    """See the module."""

    name = "direct"
    copies = False
    finds_ways = False

    def refusal(self, topology: Topology, trees: Sequence[Tree]) -> str | None:
        return too_many_interfaces(topology, MAX_INTERFACES) or kernel_refusal()

    def start(self, site: Site) -> "RunningDirectPlane":
        began = time.monotonic()
        running = RunningDirectPlane(site.pids)
        neighbours: dict[str, list[str | None]] = {island.id: [None] for island in site.topology.islands}
        for link in site.topology.links:
            neighbours.setdefault(link.source, []).append(link.target)
        try:
            for router, names in neighbours.items():
                running.add_router(router, site.pids[router], names)
        except OSError as error:
            running.close()
            raise MulticastError(f"multicast routing could not be started: {error.strerror}") from error
        running.timings_ms["sockets"] = (time.monotonic() - began) * 1e3
        return running


class RunningDirectPlane:
    """Routing sockets, one per router, that hold the installed trees."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self.timings_ms: dict[str, float] = {}
        self._pids = pids
        self._routers: dict[str, _Router] = {}
        self._lock = threading.Lock()

    def add_router(self, name: str, pid: int, neighbours: list[str | None]) -> None:
        """Start multicast routing in the namespace of `pid`. Raises OSError."""
        with entered(pid):
            router = self._routers[name] = _Router(_routing_socket())
            for number, neighbour in enumerate(neighbours):
                index = socket.if_nametoindex(interface(neighbour))
                vif = _VIF.pack(number, _USE_IFINDEX, _TTL_THRESHOLD, 0, index, bytes(4))
                router.socket.setsockopt(socket.IPPROTO_IP, _MRT_ADD_VIF, vif)
                router.numbers[neighbour] = number

    def install(self, trees: Collection[Tree]) -> None:
        with self._lock:
            for tree in trees:
                for router, entry in forwarding(tree).items():
                    self._tell(_MRT_ADD_MFC, router, tree, entry)

    def confirm(self, trees: Collection[Tree], timeout_s: float) -> None:
        wait_for_entries(self._pids, trees, timeout_s)

    def move(self, trees: Mapping[Tree, Tree]) -> None:
        with self._lock:
            # An entry that is there is replaced in place. All new ones come first, so that traffic returns early.
            for new in trees.values():
                for router, entry in forwarding(new).items():
                    self._tell(_MRT_ADD_MFC, router, new, entry)
            for old, new in trees.items():
                for router in forwarding(old).keys() - forwarding(new).keys():
                    self._tell(_MRT_DEL_MFC, router, old, Forwarding(None, ()))

    def remove(self, trees: Collection[Tree]) -> None:
        with self._lock:
            for tree in trees:
                for router in forwarding(tree):
                    self._tell(_MRT_DEL_MFC, router, tree, Forwarding(None, ()))

    def check(self) -> None:
        """Nothing of it can end by itself: the kernel forwards."""

    def are_followed(self, trees: Collection[Tree]) -> bool:
        return True

    def routing_bytes(self) -> Mapping[tuple[str, str], int]:
        return {}

    def close(self) -> None:
        with self._lock:
            for router in self._routers.values():
                router.socket.close()
            self._routers.clear()

    def _tell(self, option: int, name: str, tree: Tree, entry: Forwarding) -> None:
        router = self._routers[name]
        thresholds = bytearray(MAX_INTERFACES)
        for neighbour in entry.goes_to:
            thresholds[router.numbers[neighbour]] = _TTL_THRESHOLD
        # A transit router has no island, and takes no entry that arrives from one: the number is for removals only.
        arrives = router.numbers.get(entry.arrives_from, 0)
        source, group = socket.inet_aton(tree.address), socket.inet_aton(tree.group)
        try:
            mfc = _MFC.pack(source, group, arrives, bytes(thresholds), 0, 0, 0, 0)
            router.socket.setsockopt(socket.IPPROTO_IP, option, mfc)
        except OSError as error:
            raise MulticastError(
                f"group {tree.group} of island {tree.source} was not taken by router {name}: {error.strerror}"
            ) from error


def kernel_refusal() -> str | None:
    """Why this kernel does not route multicast, tried in a namespace made for that; None if it does. Needs root."""
    outcome: list[OSError | None] = []

    def attempt() -> None:
        # A thread of its own: its namespace ends with it, and the caller's stays.
        try:
            new_namespace()
            _routing_socket().close()
            outcome.append(None)
        except OSError as error:
            outcome.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    if outcome[0] is None:
        return None
    return (
        f"this kernel does not route multicast ({os.strerror(outcome[0].errno or errno.EIO)}); "
        "use a kernel with CONFIG_IP_MROUTE, such as Debian's"
    )


def _routing_socket() -> socket.socket:
    routing = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_IGMP)
    try:
        routing.setsockopt(socket.IPPROTO_IP, _MRT_INIT, 1)
        # Upcalls of the kernel are of no use here; a full receive buffer drops them, which harms nothing.
        routing.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
    except OSError:
        routing.close()
        raise
    return routing
