"""Which link kinds there are, and which one a run takes."""

from collections.abc import Sequence
from importlib.metadata import entry_points

from testbed.errors import TestbedError
from testbed.links.interface import Link, LinkKind

ENTRY_POINTS = "testbed.links"
_PREFERENCE = ("delayline",)  # of `auto`


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
    points = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in points:
        raise TestbedError(f"--links {name}: no such link kind; there are {', '.join(['auto', *sorted(points)])}")
    kind: LinkKind = points[name].load()()
    return kind
