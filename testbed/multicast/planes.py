"""Which multicast planes there are, and which one a run takes."""

from collections.abc import Callable, Mapping, Sequence

from scheduler.topology import Topology
from testbed.errors import TestbedError
from testbed.multicast.direct import DirectPlane
from testbed.multicast.groups import Tree
from testbed.multicast.interface import MulticastPlane
from testbed.multicast.limits import too_many_memberships
from testbed.multicast.ospf import Ospf
from testbed.multicast.pim import PimPlane
from testbed.multicast.unicast import UnicastPlane

PLANES: Mapping[str, Callable[[], MulticastPlane]] = {"pim": PimPlane, "direct": DirectPlane, "unicast": UnicastPlane}
"""How the routers of `pim` learn their ways: from the testbed, or by OSPF, with BFD beside it or without."""
_PREFERENCE = ("pim", "direct")  # of `auto`


def check_plane_name(name: str) -> None:
    """Raise TestbedError if there is no plane of this name."""
    if name != "auto" and name not in PLANES:
        raise TestbedError(f"--multicast {name}: no such plane; there are {', '.join(['auto', *sorted(PLANES)])}")


def make_ospf(igp: str, time_dilation: float) -> Ospf | None:
    """What `--igp` stands for, being one of IGPS (testbed/run/settings.py)."""
    return None if igp == "none" else Ospf(bfd=igp == "ospf", time_dilation=time_dilation)


def choose_plane(
    name: str, topology: Topology, sets: Sequence[Sequence[Tree]], ospf: Ospf | None = None
) -> MulticastPlane:
    """The plane `name`; for `auto` the first that can carry each of these sets of trees, with `ospf` only `pim`.

    A set is what is live at one time. Raises TestbedError if there is no such plane.
    """
    check_plane_name(name)
    candidates = _PREFERENCE if name == "auto" else (name,)
    if ospf is not None:
        if PimPlane.name not in candidates:
            raise TestbedError(f"--igp: plane {name} has no use for OSPF's ways; use --multicast pim, or --igp none")
        candidates = (PimPlane.name,)
    refusals = []
    for candidate in candidates:
        plane = PLANES[candidate]() if ospf is None else PimPlane(ospf)
        refused = [refusal for trees in sets if (refusal := plane_refusal(plane, topology, trees))]
        if not refused:
            return plane
        refusals.append(f"multicast plane {candidate}: {refused[0]}")
    raise TestbedError("; ".join(refusals))


def plane_refusal(plane: MulticastPlane, topology: Topology, trees: Sequence[Tree]) -> str | None:
    """Why a plane cannot carry trees that are live at one time; None if it can."""
    return plane.refusal(topology, trees) or (None if plane.copies else too_many_memberships(trees))
