"""The edge's sockets, set up so that what the kernel drops is known."""

import socket

from aggregator.wire.buffers import enlarge_receive_buffer, enlarge_send_buffer
from aggregator.wire.packet import CONTRIBUTION_PORT, REPAIR_PORT

ANCILLARY_BYTES = 64

# Linux values that Python's socket module does not name.
_SO_NO_CHECK = 11
_IP_PKTINFO = 8
_IP_ADD_SOURCE_MEMBERSHIP = 39
_IP_DROP_SOURCE_MEMBERSHIP = 40
_IP_MULTICAST_ALL = 49

# struct in_pktinfo: interface index, local address, destination address of the datagram.
_PKTINFO_GROUP = slice(8, 12)

Ancillary = list[tuple[int, int, bytes]]


def open_receiver() -> socket.socket:
    """A non-blocking socket for contributions: only groups that it joins reach it. Raises OSError."""
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
    receiver.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    enlarge_receive_buffer(receiver)
    # Bound to no address, since a socket that is bound to one gets no multicast.
    receiver.bind(("", CONTRIBUTION_PORT))
    receiver.setblocking(False)
    return receiver


def open_sender(address: str) -> socket.socket:
    """A non-blocking socket that sends from `address`. Raises OSError."""
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    enlarge_send_buffer(sender)
    # Packets carry a checksum of their own; a wrong one is to be counted, not dropped by the kernel.
    sender.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
    sender.bind((address, 0))
    sender.setblocking(False)
    return sender


def open_requests(address: str) -> socket.socket:
    """A non-blocking socket for requests to send packets again. Raises OSError."""
    requests = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    requests.bind((address, REPAIR_PORT))
    requests.setblocking(False)
    return requests


def join(receiver: socket.socket, group: str, source: str, interface_address: str) -> None:
    """Join the (S,G) pair on the interface that has `interface_address`. Raises OSError."""
    receiver.setsockopt(socket.IPPROTO_IP, _IP_ADD_SOURCE_MEMBERSHIP, _membership(group, source, interface_address))


def leave(receiver: socket.socket, group: str, source: str, interface_address: str) -> None:
    """Undo `join`. Raises OSError."""
    receiver.setsockopt(socket.IPPROTO_IP, _IP_DROP_SOURCE_MEMBERSHIP, _membership(group, source, interface_address))


def _membership(group: str, source: str, interface_address: str) -> bytes:
    return socket.inet_aton(group) + socket.inet_aton(interface_address) + socket.inet_aton(source)


def destination(ancillary: Ancillary) -> bytes:
    """The address that a datagram was sent to, as four bytes; empty if the kernel did not say."""
    for level, kind, data in ancillary:
        if level == socket.IPPROTO_IP and kind == _IP_PKTINFO:
            return data[_PKTINFO_GROUP]
    return b""
