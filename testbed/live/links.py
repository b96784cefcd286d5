"""The links of a running experiment, shown and changed by name."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scheduler.topology import Topology
from testbed.errors import TestbedError
from testbed.links.interface import Link, LinkError, RunningLinks
from testbed.live.settings import Change, Ends, check, describe, is_access, select
from testbed.scale import Scale

# What a plan counts on.
_PLANNED = {"one_way_delay_ns", "rate_bps"}

Pair = frozenset[str]
"""The two nodes that a link joins."""


class LiveLinks:
    """Used by the control socket and by scenarios alike, from several threads."""

    def __init__(self, links: Sequence[Link], running: RunningLinks, scale: Scale) -> None:
        self._links = links
        self._running = running
        self._scale = scale
        self._down: set[Pair] = set()
        self._core = {frozenset((link.a.node, link.b.node)) for link in links if not is_access(link)}
        self._lock = threading.Lock()
        self._tell_down: Callable[[frozenset[Pair]], None] = lambda _down: None
        self._tell_retuned: Callable[[], None] = lambda: None

    def tell(self, when_down: Callable[[frozenset[Pair]], None], when_retuned: Callable[[], None]) -> None:
        """Tell of the core links that are down, whenever that changes; now, if there are any.

        `when_retuned` is called when a core link has got another delay or rate.
        """
        with self._lock:
            self._tell_down, self._tell_retuned = when_down, when_retuned
            if self._core_down():
                when_down(self._core_down())

    def _core_down(self) -> frozenset[Pair]:
        return frozenset(self._down & self._core)

    def in_force(self, topology: Topology) -> Topology:
        """The topology that these links were built from, with the delays and rates that its links have now."""
        now = self._running.directions()
        return topology.with_links(
            replace(
                link,
                one_way_delay_ms=self._scale.undilated_ms(now[link.id].one_way_delay_ns),
                rate_gbps=self._scale.full_rate_gbps(now[link.id].rate_bps),
            )
            for link in topology.links
        )

    def show(self, name: str | None = None) -> list[dict[str, Any]]:
        """The physics in force of the named directions, or of all. Raises TestbedError for an unknown name."""
        in_force = self._running.directions()
        wanted = list(in_force) if name is None else select(self._links, name)
        return [
            {
                "link": f"{sender}>{receiver}",
                "up": frozenset((sender, receiver)) not in self._down,
                **describe(in_force[sender, receiver], self._scale),
            }
            for sender, receiver in wanted
        ]

    def set(self, name: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Change what is named, and nothing else; returns what was read back.

        Raises TestbedError, with nothing changed.
        """
        ends = select(self._links, name)
        change = check(values, self._scale)
        if change.up is not None and not all((receiver, sender) in ends for sender, receiver in ends):
            raise TestbedError(f"link {name}: a link goes up or down as a whole; write {name.replace('>', '-')}")
        with self._lock:
            self._change_physics(ends, change)
            if change.up is not None:
                self._set_up(ends, change.up)
            if _PLANNED & change.physics.keys() and any(frozenset(one) in self._core for one in ends):
                self._tell_retuned()
            return self.show(name)

    def _change_physics(self, ends: Sequence[Ends], change: Change) -> None:
        before = self._running.directions()
        changed: list[Ends] = []
        try:
            for sender, receiver in ends:
                self._running.change(sender, receiver, replace(before[sender, receiver], **change.physics))
                changed.append((sender, receiver))
        except LinkError as error:
            for sender, receiver in changed:
                self._running.change(sender, receiver, before[sender, receiver])
            raise TestbedError(str(error)) from error

    def _set_up(self, ends: Sequence[Ends], up: bool) -> None:
        before = self._core_down()
        for pair in {frozenset(one) for one in ends}:
            a, b = sorted(pair)
            try:
                self._running.set_up(a, b, up)
            except LinkError as error:
                raise TestbedError(str(error)) from error
            self._down = self._down - {pair} if up else self._down | {pair}
        if self._core_down() != before:
            self._tell_down(self._core_down())
