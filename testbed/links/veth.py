"""Virtual Ethernet pairs between network namespaces, made where they belong and without offloads.

An offload makes one frame of many packets, or leaves a checksum to hardware that is not there; an emulated link must
see each frame as it would be on the wire. So they are off on every end, and read back.
"""

import ctypes
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from testbed.links.interface import MTU_BYTES, LinkError

Result = TypeVar("Result")

_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCETHTOOL = 0x8913, 0x8914, 0x8946
_IFF_UP = 1
# Names, and ethtool commands to set and to get. A receiver's offloads first: they depend on the others.
_OFFLOADS = (
    ("generic receive offload", 0x2C, 0x2B),
    ("TCP segmentation", 0x1F, 0x1E),
    ("generic segmentation", 0x24, 0x23),
    ("transmit checksums", 0x17, 0x16),
    ("receive checksums", 0x15, 0x14),
)

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class PairEnd:
    """One end of a pair: its name, and a process in whose network namespace it is made."""

    interface: str
    pid: int


def make_pairs(pairs: Sequence[tuple[PairEnd, PairEnd]], group: int = 0) -> None:
    """Make veth pairs with the emulated network's MTU, all ends down; first ends are put into the interface group.

    No end is ever in another namespace than its own. Raises LinkError that names the ends; pairs made before stay.
    """
    with IPRoute() as route:
        for first, second in pairs:
            peer = {"ifname": second.interface, "net_ns_pid": second.pid, "mtu": MTU_BYTES}
            try:
                route.link(
                    "add",
                    kind="veth",
                    ifname=first.interface,
                    net_ns_pid=first.pid,
                    mtu=MTU_BYTES,
                    group=group,
                    peer=peer,
                )
            except NetlinkError as error:
                raise LinkError(
                    f"cannot make interface {second.interface} in the namespace of process {second.pid}: "
                    f"{os.strerror(error.code)}; `testbed clean` removes what an earlier run left"
                ) from error


def bring_up(pid: int, interfaces: Sequence[str]) -> None:
    """Switch offloads off, verified, and bring the interfaces of that process's namespace up. Raises LinkError."""

    def act() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            for interface in interfaces:
                _switch_offloads_off(any_socket, interface)
                flags = _flags(any_socket, interface)
                fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _flags_request(interface, flags | _IFF_UP))

    try:
        in_namespace(pid, act)
    except OSError as error:
        raise LinkError(f"cannot bring up {', '.join(interfaces)}: {error.strerror}") from error


def in_namespace(pid: int, act: Callable[[], Result]) -> Result:
    """Run a function inside the network namespace of a process; sockets that it opens stay there.

    It runs in a thread of its own that ends afterwards, so nothing can be left in the wrong namespace.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with open(f"/proc/{pid}/ns/net", "rb") as namespace:
                if _libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            results.append(act())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _switch_offloads_off(any_socket: socket.socket, interface: str) -> None:
    for name, set_command, get_command in _OFFLOADS:
        _ethtool(any_socket, interface, set_command, check=False)
        if _ethtool(any_socket, interface, get_command, check=True) != 0:
            raise LinkError(f"interface {interface}: {name} cannot be switched off; use another kernel or link kind")


def _ethtool(any_socket: socket.socket, interface: str, command: int, check: bool) -> int:
    value = ctypes.create_string_buffer(struct.pack("=II", command, 0), 8)
    request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(value))
    try:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
    except OSError:
        if check:
            raise
    answer: int = struct.unpack("=II", value.raw)[1]
    return answer


def _flags_request(interface: str, flags: int) -> bytes:
    return struct.pack("16sH22x", interface.encode(), flags)


def _flags(any_socket: socket.socket, interface: str) -> int:
    answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, _flags_request(interface, 0))
    flags: int = struct.unpack("16sH22x", answer)[1]
    return flags
