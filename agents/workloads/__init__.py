"""Workloads: what the islands train. Start with `interface`; `load_workload` finds one by its name."""

from importlib.metadata import entry_points

from agents.workloads.digits import Digits
from agents.workloads.interface import Workload
from agents.workloads.synthetic import Synthetic

GROUP = "testbed.workloads"
_BUILT_IN: dict[str, type[Workload]] = {"digits": Digits, "synthetic": Synthetic}


def workload_names() -> list[str]:
    """The names that `load_workload` knows: built-in ones and those of installed packages."""
    return sorted(_BUILT_IN.keys() | {point.name for point in entry_points(group=GROUP)})


def load_workload(name: str) -> Workload:
    """The workload of that name: built in, or made by calling an entry point of the group `testbed.workloads`.

    Raises ValueError, naming the known ones, for any other name.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    for point in entry_points(group=GROUP, name=name):
        made: Workload = point.load()()
        return made
    raise ValueError(f"unknown workload {name!r}: there are {', '.join(workload_names())}")
