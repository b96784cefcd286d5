"""Routes to single addresses on the routers, over chosen core links: how trees become kernel routes."""

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from scheduler.topology import Topology
from testbed.network import naming
from testbed.network.namespaces import entered

Routes = Mapping[tuple[str, str], str]
"""The neighbour through which a router reaches an address, by (router, address)."""


class HostRoutes:
    """The routes that one plane has set. Not thread-safe."""

    def __init__(self, topology: Topology, pids: Mapping[str, int]) -> None:
        """Raises OSError."""
        self._gateways: dict[tuple[str, str], str] = {}
        for pair in naming.core_pairs(topology):
            self._gateways[pair.a, pair.b] = pair.address(pair.b)
            self._gateways[pair.b, pair.a] = pair.address(pair.a)
        self._pids = pids
        # Kept open: a failed link wants its routes rewritten within milliseconds.
        self._sockets: dict[str, IPRoute] = {}
        self._set: dict[tuple[str, str], str] = {}

    def set(self, routes: Routes) -> None:
        """Set these routes, in place of others to the same addresses. Raises OSError that names router and address."""
        for (router, address), neighbour in routes.items():
            if self._set.get((router, address)) == neighbour:
                continue
            gateway = self._gateways[router, neighbour]
            self._change("replace", router, address, dst=f"{address}/32", gateway=gateway)
            self._set[router, address] = neighbour

    def remove(self, keys: Iterable[tuple[str, str]]) -> None:
        """Remove the routes by which these routers reach these addresses, if there are any. Raises OSError."""
        for router, address in keys:
            if self._set.pop((router, address), None) is not None:
                self._change("del", router, address, dst=f"{address}/32")

    def known(self) -> Routes:
        return dict(self._set)

    def close(self) -> None:
        """Forget the routes; they end with their namespaces. Safe to call twice."""
        for opened in self._sockets.values():
            opened.close()
        self._sockets.clear()

    def _change(self, action: str, router: str, address: str, **route: str) -> None:
        try:
            self._socket(router).route(action, **route)
        except NetlinkError as error:
            raise OSError(error.code, f"router {router}: route to {IPv4Address(address)}: {error}") from error

    def _socket(self, router: str) -> IPRoute:
        if router not in self._sockets:
            with entered(self._pids[router]):
                self._sockets[router] = IPRoute()
        return self._sockets[router]
