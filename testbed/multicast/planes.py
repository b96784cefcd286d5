"""Which multicast planes there are, and which one a run takes."""

from collections.abc import Callable, Mapping, Sequence

from scheduler.topology import Topology
from testbed.errors import TestbedError
from testbed.multicast.direct import DirectPlane
from testbed.multicast.groups import Tree
from testbed.multicast.interface import MulticastPlane
from testbed.multicast.limits import too_many_memberships
from testbed.multicast.pim import PimPlane
from testbed.multicast.unicast import UnicastPlane

PLANES: Mapping[str, Callable[[], MulticastPlane]] = {"pim": PimPlane, "direct": DirectPlane, "unicast": UnicastPlane}
_PREFERENCE = ("pim", "direct")  # of `auto`


def check_plane_name(name: str) -> None:
    """Raise TestbedError if there is no plane of this name."""
    if name != "auto" and name not in PLANES:
        raise TestbedError(f"--multicast {name}: no such plane; there are {', '.join(['auto', *sorted(PLANES)])}")


def choose_plane(name: str, topology: Topology, trees: Sequence[Tree]) -> MulticastPlane:
    """The plane `name`; for `auto` the first that can carry `trees`. Raises TestbedError if there is none."""
    check_plane_name(name)
    refusals = []
    for candidate in _PREFERENCE if name == "auto" else (name,):
        plane = PLANES[candidate]()
        refusal = plane.refusal(topology, trees)
        if refusal is None and not plane.copies:
            refusal = too_many_memberships(trees)
        if refusal is None:
            return plane
        refusals.append(f"multicast plane {candidate}: {refusal}")
    raise TestbedError("; ".join(refusals))
