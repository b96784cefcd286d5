"""Netlink sockets in the nodes' network namespaces."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyroute2 import IPRoute

from testbed.network.namespaces import entered


@contextmanager
def netlink(pid: int) -> Iterator[IPRoute]:
    """A netlink socket in the network namespace of process `pid`."""
    with entered(pid):
        socket = IPRoute()
    with socket:
        yield socket
