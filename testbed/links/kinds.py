"""Which link kinds there are, and which one a run takes."""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points

from testbed.errors import TestbedError
from testbed.links.delayline import DelayLine
from testbed.links.interface import Link, LinkKind
from testbed.links.netem import Netem

ENTRY_POINT_GROUP = "testbed.links"
_BUILT_IN: Mapping[str, Callable[[], LinkKind]] = {"delayline": DelayLine, "netem": Netem}
_PREFERENCE = ("netem", "delayline")  # of `auto`


def choose_link_kind(name: str, links: Sequence[Link]) -> LinkKind:
    """The link kind `name`; for `auto` the first that can have `links`.

    Raises TestbedError if there is no such kind, or it refuses: there is never a link without its physics.
    """
    refusals = []
    for candidate in _PREFERENCE if name == "auto" else (name,):
        kind = _load(candidate)
        refusal = kind.refusal(links)
        if refusal is None:
            return kind
        refusals.append(f"link kind {kind.name}: {refusal}")
    raise TestbedError("; ".join(refusals))


def _load(name: str) -> LinkKind:
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    registered = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in registered:
        known = ", ".join(["auto", *sorted({*_BUILT_IN, *registered})])
        raise TestbedError(f"--links {name}: no such link kind; there are {known}")
    kind: LinkKind = registered[name].load()()
    return kind
