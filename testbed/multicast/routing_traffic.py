"""What routing protocols themselves put on the links: to be told from the streams, which are what a plan speaks of.

A packet socket at the receiving end of each direction, with a filter that only their packets pass (PIM, OSPF and BFD);
they wait in its buffer, a few each second, until they are counted.
"""

import ctypes
import errno
import socket
import struct
from collections.abc import Mapping

from aggregator.wire.packet import ETHERNET_BYTES
from scheduler.topology import Topology
from testbed.multicast.forwarding_cache import interface
from testbed.network.namespaces import entered

_ETH_P_IP = 0x0800
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33
_BUFFER_BYTES = 4 << 20
_OSPF, _PIM, _UDP, _BFD_PORT = 89, 103, 17, 3784
_WHOLE, _NOTHING = 0x40000, 0

# Classic BPF (linux/bpf_common.h) on an IP packet: operation, jump if true, jump if false, operand.
_LOAD_BYTE, _LOAD_HALF_INDEXED, _INDEX_BY_HEADER = 0x30, 0x48, 0xB1
_JUMP_EQUAL, _RETURN = 0x15, 0x06
_FILTER = (
    (_LOAD_BYTE, 0, 0, 9),  # protocol
    (_JUMP_EQUAL, 5, 0, _OSPF),
    (_JUMP_EQUAL, 4, 0, _PIM),
    (_JUMP_EQUAL, 0, 4, _UDP),
    (_INDEX_BY_HEADER, 0, 0, 0),  # the index is the length of the IP header
    (_LOAD_HALF_INDEXED, 0, 0, 2),  # destination port
    (_JUMP_EQUAL, 0, 1, _BFD_PORT),
    (_RETURN, 0, 0, _WHOLE),
    (_RETURN, 0, 0, _NOTHING),
)


class RoutingTraffic:
    """Counts from its making on. Not thread-safe."""

    def __init__(self, topology: Topology, pids: Mapping[str, int]) -> None:
        """Raises OSError."""
        self._sockets: dict[tuple[str, str], socket.socket] = {}
        self._bytes: dict[tuple[str, str], int] = {}
        try:
            for link in topology.links:
                with entered(pids[link.target]):
                    tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
                    self._sockets[link.id] = tap
                    _attach(tap)
                    tap.bind((interface(link.source), _ETH_P_IP))
        except OSError:
            self.close()
            raise
        self._bytes = dict.fromkeys(self._sockets, 0)

    def read(self) -> Mapping[tuple[str, str], int]:
        """On-wire bytes that have arrived so far, by (sending router, receiving router). Raises OSError."""
        for direction, tap in self._sockets.items():
            while True:
                try:
                    size = tap.recv_into(bytearray(1), 1, socket.MSG_TRUNC | socket.MSG_DONTWAIT)
                except BlockingIOError:
                    break
                except OSError as error:
                    if error.errno != errno.ENETDOWN:
                        raise
                    continue  # told once after somebody has taken the interface down; it goes on when that is up
                self._bytes[direction] += size + ETHERNET_BYTES
        return dict(self._bytes)

    def close(self) -> None:
        """Safe to call twice."""
        for tap in self._sockets.values():
            tap.close()
        self._sockets.clear()


def _attach(tap: socket.socket) -> None:
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _FILTER)
    held = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog: how many instructions, and where they are.
    program = struct.pack("@HP", len(_FILTER), ctypes.addressof(held))
    tap.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    tap.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
