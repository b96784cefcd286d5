"""Which multicast planes there are, and which one a run takes."""

from collections.abc import Iterable

from scheduler.topology import Topology
from testbed.errors import TestbedError
from testbed.multicast.direct import DirectPlane
from testbed.multicast.groups import Tree
from testbed.multicast.interface import MulticastPlane

_PLANES = {"direct": DirectPlane}
_AUTO = "direct"


def choose_plane(name: str, topology: Topology, trees: Iterable[Tree]) -> MulticastPlane:
    """The plane `name`, or the one that `auto` means. Raises TestbedError if there is none, or it refuses."""
    chosen = _AUTO if name == "auto" else name
    if chosen not in _PLANES:
        raise TestbedError(f"--multicast {name}: no such plane; there are {', '.join(['auto', *sorted(_PLANES)])}")
    plane = _PLANES[chosen]()
    refusal = plane.refusal(topology, trees)
    if refusal is not None:
        raise TestbedError(f"multicast plane {chosen}: {refusal}")
    return plane
