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


def choose_plane(name: str, topology: Topology, sets: Sequence[Sequence[Tree]]) -> MulticastPlane:
    """The plane `name`; for `auto` the first that can carry each of these sets of trees.

    A set is what is live at one time. Raises TestbedError if there is no such plane.
    """
    check_plane_name(name)
    refusals = []
    for candidate in _PREFERENCE if name == "auto" else (name,):
        plane = PLANES[candidate]()
        refused = [refusal for trees in sets if (refusal := plane_refusal(plane, topology, trees))]
        if not refused:
            return plane
        refusals.append(f"multicast plane {candidate}: {refused[0]}")
    raise TestbedError("; ".join(refusals))


def plane_refusal(plane: MulticastPlane, topology: Topology, trees: Sequence[Tree]) -> str | None:
    """Why a plane cannot carry trees that are live at one time; None if it can."""
    return plane.refusal(topology, trees) or (None if plane.copies else too_many_memberships(trees))
