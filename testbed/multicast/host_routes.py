"""Routes to single addresses on the routers, over chosen core links: how trees become kernel routes.

Spoken straight to the kernel (rtnetlink, linux/rtnetlink.h): a failed link wants hundreds of routes rewritten within
milliseconds, from whichever thread learns of it.
"""

import os
import socket
import struct
from collections.abc import Iterable, Mapping

from scheduler.topology import Topology
from testbed.network import naming
from testbed.network.namespaces import entered

_NEW_ROUTE, _DELETE_ROUTE, _ERROR = 24, 25, 2
_REQUEST, _ACKNOWLEDGE, _REPLACE, _CREATE = 0x1, 0x4, 0x100, 0x400
_MAIN_TABLE, _STATIC, _UNICAST = 254, 4, 1
_DESTINATION, _GATEWAY = 1, 5
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence number, port
_ROUTE = struct.Struct("=8BI")  # struct rtmsg: family, prefix lengths, tos, table, protocol, scope, type, flags
_ATTRIBUTE = struct.Struct("=HH4s")  # struct rtattr and an IPv4 address
_ANSWER_BYTES = 4096

Routes = Mapping[tuple[str, str], str]
"""The neighbour through which a router reaches an address, by (router, address)."""


class HostRoutes:
    """The routes that one plane has set. Not thread-safe."""

    def __init__(self, topology: Topology, pids: Mapping[str, int]) -> None:
        self._gateways = {
            (here, there): pair.address(there) for pair in naming.core_pairs(topology) for here, there in pair.both_ways
        }
        self._pids = pids
        self._sockets: dict[str, socket.socket] = {}
        self._set: dict[tuple[str, str], str] = {}
        self._sequence = 0

    def set(self, routes: Routes) -> None:
        """Set these routes, in place of others to the same addresses. Raises OSError that names router and address."""
        for (router, address), neighbour in routes.items():
            if self._set.get((router, address)) != neighbour:
                flags = _REPLACE | _CREATE
                self._change(_NEW_ROUTE, flags, router, address, self._gateways[router, neighbour])
                self._set[router, address] = neighbour

    def remove(self, keys: Iterable[tuple[str, str]]) -> None:
        """Remove the routes by which these routers reach these addresses, if there are any. Raises OSError."""
        for router, address in keys:
            neighbour = self._set.pop((router, address), None)
            if neighbour is not None:
                self._change(_DELETE_ROUTE, 0, router, address, self._gateways[router, neighbour])

    def known(self) -> Routes:
        """The routes that are set."""
        return dict(self._set)

    def close(self) -> None:
        """Forget the routes; they end with their namespaces. Safe to call twice."""
        for opened in self._sockets.values():
            opened.close()
        self._sockets.clear()

    def _change(self, kind: int, flags: int, router: str, address: str, gateway: str) -> None:
        self._sequence += 1
        body = _ROUTE.pack(socket.AF_INET, 32, 0, 0, _MAIN_TABLE, _STATIC, 0, _UNICAST, 0)
        body += _ATTRIBUTE.pack(_ATTRIBUTE.size, _DESTINATION, socket.inet_aton(address))
        body += _ATTRIBUTE.pack(_ATTRIBUTE.size, _GATEWAY, socket.inet_aton(gateway))
        wanted = _REQUEST | _ACKNOWLEDGE | flags
        kernel = self._socket(router)
        kernel.send(_HEADER.pack(_HEADER.size + len(body), kind, wanted, self._sequence, 0) + body)
        answer = kernel.recv(_ANSWER_BYTES)
        _, answer_kind, _, sequence, _ = _HEADER.unpack_from(answer)
        error = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        if answer_kind != _ERROR or sequence != self._sequence or error:
            reason = os.strerror(error) if error else "an answer to something else"
            raise OSError(error, f"router {router}: route to {address} over {gateway}: {reason}")

    def _socket(self, router: str) -> socket.socket:
        if router not in self._sockets:
            with entered(self._pids[router]):
                self._sockets[router] = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        return self._sockets[router]
