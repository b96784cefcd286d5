"""What the kernels' multicast forwarding caches hold, and whether that is what the plan wants.

Read from /proc/PID/net of a process in the router's namespace: ip_mr_vif has the router's multicast interfaces,
ip_mr_cache the entries with their counters. It costs no traffic and no privilege in the router.
"""

import socket
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.multicast.groups import Forwarding, Tree, forwarding
from testbed.multicast.interface import MulticastError
from testbed.network import naming

_POLL_S = 0.01

Channel = tuple[str, str]
"""(source address, group)"""


@dataclass(frozen=True)
class Entry:
    """An entry of a router: interfaces by name; `arrives` is None while the kernel waits for someone to resolve it."""

    arrives: str | None
    goes: frozenset[str]
    packets: int
    wrong_interface: int


def read_cache(pid: int) -> dict[Channel, Entry]:
    """The entries of the router whose namespace `pid` lives in. Raises OSError."""
    interfaces = {number: name for number, name, _ in _interfaces(pid)}
    entries = {}
    for line in _lines(pid, "ip_mr_cache"):
        words = line.split()
        group, origin = (_address(word) for word in words[:2])
        arrives = interfaces.get(int(words[2]))
        goes = frozenset(interfaces.get(int(word.split(":")[0]), "?") for word in words[6:])
        entries[origin, group] = Entry(arrives, goes, int(words[3]), int(words[5]))
    return entries


def packets_out(pid: int) -> int:
    """Packets that the router has sent on by multicast routing, counted per copy. Raises OSError."""
    return sum(packets for _, _, packets in _interfaces(pid))


def _interfaces(pid: int) -> list[tuple[int, str, int]]:
    """(number, name, packets sent) of the router's multicast interfaces."""
    lines = [line.split() for line in _lines(pid, "ip_mr_vif")]
    # Interface, BytesIn, PktsIn, BytesOut, PktsOut, Flags, Local, Remote; the number is before the name.
    return [(int(words[0]), words[1], int(words[5])) for words in lines]


def _lines(pid: int, table: str) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii")
    except FileNotFoundError:
        return []  # no multicast routing in that namespace yet
    return text.splitlines()[1:]


def _address(word: str) -> str:
    """The kernel prints an address in network order as a number of its own byte order."""
    return socket.inet_ntoa(struct.pack("=I", int(word, 16)))


def interface(neighbour: str | None) -> str:
    """A router's interface to a neighbour; None is its own island."""
    return naming.ROUTER_TO_EDGE if neighbour is None else naming.core_interface(neighbour)


def expected_entries(trees: Iterable[Tree]) -> dict[str, dict[Channel, Forwarding]]:
    """The entries that each router should have for `trees`."""
    entries: dict[str, dict[Channel, Forwarding]] = {}
    for tree in trees:
        for router, entry in forwarding(tree).items():
            entries.setdefault(router, {})[tree.address, tree.group] = entry
    return entries


def wrong_entry(pids: Mapping[str, int], trees: Iterable[Tree]) -> str | None:
    """The first entry that is not as the trees want it, in words; None if all are. Raises OSError."""
    for router, wanted in expected_entries(trees).items():
        found = read_cache(pids[router])
        for (address, group), entry in wanted.items():
            there = found.get((address, group))
            if there is None:
                return f"router {router} has no entry for ({address}, {group})"
            wanted_goes = {interface(neighbour) for neighbour in entry.goes_to}
            if there.arrives != interface(entry.arrives_from) or there.goes != wanted_goes:
                return (
                    f"router {router} forwards ({address}, {group}) from {there.arrives} to "
                    f"{', '.join(sorted(there.goes)) or 'nowhere'}; planned is from {interface(entry.arrives_from)} to "
                    f"{', '.join(sorted(wanted_goes))}"
                )
    return None


def wait_for_entries(pids: Mapping[str, int], trees: Iterable[Tree], timeout_s: float) -> None:
    """Wait until every router's entries are exactly those of `trees`. Raises MulticastError after `timeout_s`."""
    wanted = list(trees)
    deadline = time.monotonic() + timeout_s
    while (wrong := wrong_entry(pids, wanted)) is not None:
        if time.monotonic() > deadline:
            raise MulticastError(f"not all trees were installed within {timeout_s:.1f} s: {wrong}")
        time.sleep(_POLL_S)
