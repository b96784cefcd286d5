"""The kernel's limits on multicast, checked before anything is built."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from scheduler.topology import Topology
from testbed.multicast.groups import Tree
from testbed.network import naming

MAX_INTERFACES = 32  # the kernel's MAXVIFS, per router
# Set in each edge's namespace, where the defaults are 20 and 10 (testbed/network/emulated.py).
MAX_MEMBERSHIPS = 4096
# What one source-specific membership takes of a socket's option memory: 112 bytes, as measured on Linux 6.18.
_MEMBERSHIP_BYTES = 114
_OPTION_MEMORY = Path("/proc/sys/net/core/optmem_max")


def too_many_interfaces(topology: Topology, most: int) -> str | None:
    """Which router has more than `most` multicast interfaces; None if none has."""
    counts = Counter({island.id: 1 for island in topology.islands})
    counts.update(link.source for link in topology.links)
    for router, count in counts.items():
        if count > most:
            return (
                f"router {router} has {count} multicast interfaces, but the kernel has room for {most}; "
                "use a topology with fewer links there"
            )
    return None


def too_many_memberships(trees: Iterable[Tree]) -> str | None:
    """Which edge would join more trees than one socket can; None if none would."""
    most = min(MAX_MEMBERSHIPS, int(_OPTION_MEMORY.read_text(encoding="ascii")) // _MEMBERSHIP_BYTES)
    counts = Counter(receiver for tree in trees for receiver in tree.receivers)
    for island, count in counts.items():
        if count > most:
            return (
                f"edge {naming.edge_name(island)} would join {count} trees, but a socket has room for {most} "
                f"memberships here; use a policy with fewer rounds, or raise the sysctl net.core.optmem_max to "
                f"{count * _MEMBERSHIP_BYTES}"
            )
    return None
