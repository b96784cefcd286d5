"""Topologies by name or file."""

from collections.abc import Callable
from pathlib import Path

from scheduler.errors import TopologyError
from scheduler.topology import Topology
from testbed.topology.files import read_topology
from testbed.topology.nine_city import nine_city

BUILT_IN: dict[str, Callable[[], Topology]] = {"nine-city": nine_city}


def load_topology(name_or_path: str) -> Topology:
    """A built-in topology by its name, else the topology file at this path. Raises TopologyError in one line."""
    if name_or_path in BUILT_IN:
        return BUILT_IN[name_or_path]()
    path = Path(name_or_path)
    if not path.exists():
        built_in = ", ".join(BUILT_IN)
        raise TopologyError(f"topology {name_or_path!r} is neither a file nor built in: built in are {built_in}")
    return read_topology(path)
