"""Workloads: what the islands train. Start with `interface`; `load_workload` finds one by its name."""

import importlib
from importlib.metadata import entry_points

from agents.plugin_file import load_from_file, split_name
from agents.workloads.interface import Workload

GROUP = "testbed.workloads"
# Loaded when asked for: the last one needs PyTorch.
_BUILT_IN = {
    "digits": "agents.workloads.digits:Digits",
    "synthetic": "agents.workloads.synthetic:Synthetic",
    "characters": "agents.workloads.characters:Characters",
}


def workload_names() -> list[str]:
    """The names that `load_workload` knows: built-in ones and those of installed packages."""
    return sorted(_BUILT_IN.keys() | {point.name for point in entry_points(group=GROUP)})


def load_workload(name: str) -> Workload:
    """The workload of that name: built in, an entry point of the group `testbed.workloads`, or `path/file.py:Name`.

    Raises ValueError, naming the known ones, for any other name; or if it needs a package that is not there.
    """
    file = split_name(name)
    try:
        if file is not None:
            factory = load_from_file(*file)
        elif name in _BUILT_IN:
            module, _, attribute = _BUILT_IN[name].partition(":")
            factory = getattr(importlib.import_module(module), attribute)
        else:
            factory = next(point.load() for point in entry_points(group=GROUP, name=name))
    except StopIteration:
        known = ", ".join(workload_names())
        raise ValueError(f"unknown workload {name!r}: there are {known}, or path/file.py:Name") from None
    except (ImportError, AttributeError) as error:
        raise ValueError(f"workload {name}: {error}") from error
    made: Workload = factory()
    return made
