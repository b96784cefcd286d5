"""Socket buffers of hosts and edges: as large as is allowed, and what the kernel dropped for want of room is known."""

import socket
import struct

LARGEST_BYTES = 16 << 20

# Linux values that Python's socket module does not name.
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_SO_MEMINFO = 55

_MEMINFO = struct.Struct("=9I")
_MEMINFO_DROPS = 8


def enlarge_receive_buffer(sock: socket.socket, size: int = LARGEST_BYTES) -> None:
    """Ask for `size` bytes; without CAP_NET_ADMIN the kernel cuts that to the sysctl's maximum."""
    _enlarge(sock, _SO_RCVBUFFORCE, socket.SO_RCVBUF, size)


def enlarge_send_buffer(sock: socket.socket, size: int = LARGEST_BYTES) -> None:
    """Ask for `size` bytes; without CAP_NET_ADMIN the kernel cuts that to the sysctl's maximum."""
    _enlarge(sock, _SO_SNDBUFFORCE, socket.SO_SNDBUF, size)


def _enlarge(sock: socket.socket, force: int, option: int, size: int) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, force, size)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, option, size)


def receive_buffer_bytes(receiver: socket.socket) -> int:
    """The receive buffer that the socket really has (the kernel reports twice what it grants)."""
    return receiver.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


def overflows(receiver: socket.socket) -> int:
    """Datagrams that the kernel has dropped at this socket since it was opened.

    Read from SO_MEMINFO: SO_RXQ_OVFL gives the same count, but only with a later datagram, so never the last drops.
    """
    drops: int = _MEMINFO.unpack(receiver.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))[_MEMINFO_DROPS]
    return drops
