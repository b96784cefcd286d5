"""What no link kind can have; each kind adds its own limits."""

from collections.abc import Callable, Sequence

from testbed.links.interface import Direction, Link


def wrong_link(links: Sequence[Link], wrong_direction: Callable[[Direction], str | None]) -> str | None:
    """The first thing about these links that cannot be had, or None; a kind says what it thinks of a direction."""
    pairs: dict[frozenset[str], str] = {}
    for link in links:
        ends = frozenset((link.a.node, link.b.node))
        if len(ends) == 1:
            return f"link {link.name}: both ends are at node {link.a.node}; a link joins two nodes"
        if ends in pairs:
            return f"link {link.name}: {pairs[ends]} joins the same two nodes; merge them into one"
        pairs[ends] = link.name
        for end in (link.a, link.b):
            if not 0 < len(end.interface.encode()) <= 15:
                return f"link {link.name}: interface name {end.interface!r} must have 1 to 15 bytes"
        for direction, arrow in (
            (link.forward, f"{link.a.node}>{link.b.node}"),
            (link.backward, f"{link.b.node}>{link.a.node}"),
        ):
            wrong = wrong_direction(direction)
            if wrong:
                return f"link {link.name} ({arrow}): {wrong}"
    return None


def wrong_numbers(direction: Direction) -> str | None:
    """The first number of this direction that means nothing, or None."""
    if direction.queue_bytes < 0:
        return f"queue {direction.queue_bytes} bytes is below 0"
    if not 0 <= direction.jitter_ns <= direction.one_way_delay_ns:
        return f"jitter {direction.jitter_ns} ns is not within 0 and the delay, {direction.one_way_delay_ns} ns"
    if not -(2**63) <= direction.seed < 2**63:
        return f"seed {direction.seed} does not fit 64 bits"
    for name, probability in _probabilities(direction).items():
        if not 0 <= probability <= 1:
            return f"{name} {probability:g} is not a probability within 0 and 1"
    return None


def _probabilities(direction: Direction) -> dict[str, float]:
    probabilities = {"loss": direction.loss, "duplicate": direction.duplicate, "corrupt": direction.corrupt}
    if direction.bursts is not None:
        bursts = direction.bursts
        probabilities |= {"bursts enter": bursts.enter, "bursts leave": bursts.leave}
        probabilities |= {"bursts loss": bursts.loss, "bursts loss outside": bursts.loss_outside}
    return probabilities
