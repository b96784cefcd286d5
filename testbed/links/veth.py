"""Virtual Ethernet pairs between network namespaces, made where they belong and without offloads.

An offload makes one frame of many packets, or leaves a checksum to hardware that is not there; an emulated link must
see each frame as it would be on the wire. So they are off on every end, and read back.
"""

import ctypes
import errno
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
_ETHTOOL_GSTRINGS, _ETHTOOL_GSSET_INFO, _ETHTOOL_GFEATURES, _ETHTOOL_SFEATURES = 0x1B, 0x37, 0x3A, 0x3B
_FEATURE_NAMES, _FEATURE_NAME_BYTES = 4, 32
# Features whose names contain one of these change what a frame is on its way.
_OFFLOADS = ("checksum", "segmentation", "gro", "gso", "lro")

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
                hint = "; `testbed clean` removes what an earlier run left" if error.code == errno.EEXIST else ""
                raise LinkError(
                    f"cannot make interface {second.interface} in the namespace of process {second.pid}: "
                    f"{os.strerror(error.code)}{hint}"
                ) from error


def bring_up(pid: int, interfaces: Sequence[str]) -> None:
    """Switch offloads off, verified, and bring the interfaces of that process's namespace up. Raises LinkError."""

    def act() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            names = _feature_names(any_socket, interfaces[0]) if interfaces else []
            for interface in interfaces:
                _switch_offloads_off(any_socket, interface, names)
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


def _switch_offloads_off(any_socket: socket.socket, interface: str, names: Sequence[str]) -> None:
    unwanted = sum(1 << bit for bit, name in enumerate(names) if any(word in name for word in _OFFLOADS))
    blocks = (len(names) + 31) // 32
    masks = [unwanted >> (32 * block) & 0xFFFFFFFF for block in range(blocks)]
    # Per block of 32 features: which can change, which were asked for, which are on, which never change.
    get = struct.pack(f"=II{16 * blocks}x", _ETHTOOL_GFEATURES, blocks)
    changeable = struct.unpack_from(f"={4 * blocks}I", _ethtool(any_socket, interface, get), 8)[::4]
    # Per block: which to change, and to what.
    change = [word for mask, can in zip(masks, changeable, strict=True) for word in (mask & can, 0)]
    _ethtool(any_socket, interface, struct.pack(f"=II{2 * blocks}I", _ETHTOOL_SFEATURES, blocks, *change))
    on = struct.unpack_from(f"={4 * blocks}I", _ethtool(any_socket, interface, get), 8)[2::4]
    still_on = sum((word & mask) << (32 * block) for block, (word, mask) in enumerate(zip(on, masks, strict=True)))
    if still_on:
        left = ", ".join(name for bit, name in enumerate(names) if still_on >> bit & 1)
        raise LinkError(f"interface {interface}: {left} cannot be switched off; use another kernel or link kind")


def _feature_names(any_socket: socket.socket, interface: str) -> list[str]:
    """The names of the kernel's interface features, by bit; empty ones are unused."""
    asked = struct.pack("=IIQI", _ETHTOOL_GSSET_INFO, 0, 1 << _FEATURE_NAMES, 0)
    count = struct.unpack_from("=I", _ethtool(any_socket, interface, asked), 16)[0]
    asked = struct.pack(f"=III{count * _FEATURE_NAME_BYTES}x", _ETHTOOL_GSTRINGS, _FEATURE_NAMES, count)
    strings = _ethtool(any_socket, interface, asked)[12:]
    starts = range(0, count * _FEATURE_NAME_BYTES, _FEATURE_NAME_BYTES)
    return [strings[start : start + _FEATURE_NAME_BYTES].split(b"\0")[0].decode() for start in starts]


def _ethtool(any_socket: socket.socket, interface: str, command: bytes) -> bytes:
    """Run an ethtool command, a structure that the kernel changes, and return what it became."""
    structure = ctypes.create_string_buffer(command, len(command))
    request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(structure))
    fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
    return structure.raw


def _flags_request(interface: str, flags: int) -> bytes:
    return struct.pack("16sH22x", interface.encode(), flags)


def _flags(any_socket: socket.socket, interface: str) -> int:
    answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, _flags_request(interface, 0))
    flags: int = struct.unpack("16sH22x", answer)[1]
    return flags
