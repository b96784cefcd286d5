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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduler.topology import Topology
from testbed.multicast.groups import Tree, forwarding
from testbed.multicast.interface import MulticastError
from testbed.network import naming
from testbed.network.namespaces import entered, new_namespace

MAX_INTERFACES = 32  # the kernel's MAXVIFS

_MRT_INIT, _MRT_ADD_VIF, _MRT_ADD_MFC = 200, 202, 204
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

    def refusal(self, topology: Topology, trees: Iterable[Tree]) -> str | None:
        for router, count in _interface_counts(topology).items():
            if count > MAX_INTERFACES:
                return (
                    f"router {router} has {count} multicast interfaces, but the kernel has room for {MAX_INTERFACES}; "
                    "use a topology with fewer links there"
                )
        return kernel_refusal()

    def start(self, topology: Topology, pids: Mapping[str, int]) -> "RunningDirectPlane":
        running = RunningDirectPlane(topology)
        neighbours: dict[str, list[str | None]] = {island.id: [None] for island in topology.islands}
        for link in topology.links:
            neighbours.setdefault(link.source, []).append(link.target)
        try:
            for router, names in neighbours.items():
                running.add_router(router, pids[router], names)
        except OSError as error:
            running.close()
            raise MulticastError(f"multicast routing could not be started: {error.strerror}") from error
        return running


class RunningDirectPlane:
    """Routing sockets, one per router, that hold the installed trees."""

    def __init__(self, topology: Topology) -> None:
        self._island_ids = {island.id: number for number, island in enumerate(topology.islands)}
        self._routers: dict[str, _Router] = {}

    def add_router(self, name: str, pid: int, neighbours: list[str | None]) -> None:
        """Start multicast routing in the namespace of `pid`. Raises OSError."""
        with entered(pid):
            router = self._routers[name] = _Router(_routing_socket())
            for number, neighbour in enumerate(neighbours):
                interface = naming.ROUTER_TO_EDGE if neighbour is None else naming.core_interface(neighbour)
                vif = _VIF.pack(number, _USE_IFINDEX, _TTL_THRESHOLD, 0, socket.if_nametoindex(interface), bytes(4))
                router.socket.setsockopt(socket.IPPROTO_IP, _MRT_ADD_VIF, vif)
                router.numbers[neighbour] = number

    def install(self, trees: Iterable[Tree]) -> None:
        for tree in trees:
            source = socket.inet_aton(naming.host_address(self._island_ids[tree.source]))
            group = socket.inet_aton(tree.group)
            for name, entry in forwarding(tree).items():
                router = self._routers[name]
                thresholds = bytearray(MAX_INTERFACES)
                for neighbour in entry.goes_to:
                    thresholds[router.numbers[neighbour]] = _TTL_THRESHOLD
                mfc = _MFC.pack(source, group, router.numbers[entry.arrives_from], bytes(thresholds), 0, 0, 0, 0)
                try:
                    router.socket.setsockopt(socket.IPPROTO_IP, _MRT_ADD_MFC, mfc)
                except OSError as error:
                    raise MulticastError(
                        f"group {tree.group} of island {tree.source} was not taken by router {name}: {error.strerror}"
                    ) from error

    def close(self) -> None:
        for router in self._routers.values():
            router.socket.close()
        self._routers.clear()


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


def _interface_counts(topology: Topology) -> dict[str, int]:
    counts = {island.id: 1 for island in topology.islands}
    for link in topology.links:
        counts[link.source] = counts.get(link.source, 0) + 1
    return counts
