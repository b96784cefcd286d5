"""The graph that is planned on: islands and transit routers, and directed core links between them.

Delays are one-way and in ms, rates in Gbit/s (1e9 bit/s). Access links belong to their island.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from scheduler.errors import TopologyError

LinkId = tuple[str, str]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Island:
    """One training site behind one access link; latitude and longitude in degrees."""

    id: str
    region: str | None = None
    latitude: float | None = None
    longitude: float | None = None
    access_up_gbps: float = 100.0
    access_down_gbps: float = 100.0
    access_one_way_delay_ms: float = 0.0

    def __post_init__(self) -> None:
        where = f"island {self.id!r}"
        if not self.id:
            raise TopologyError("an island has an empty id: give every node an id")
        _check_positive(where, "access_up_gbps", self.access_up_gbps)
        _check_positive(where, "access_down_gbps", self.access_down_gbps)
        _check_at_least_zero(where, "access_one_way_delay_ms", self.access_one_way_delay_ms)
        if (self.latitude is None) != (self.longitude is None):
            raise TopologyError(f"{where}: latitude and longitude come together, or not at all")
        _check_degrees(where, "latitude", self.latitude, 90.0)
        _check_degrees(where, "longitude", self.longitude, 180.0)


@dataclass(frozen=True)
class CoreLink:
    """One direction of a core link, from `source` to `target`. A link that works both ways is two of these."""

    source: str
    target: str
    one_way_delay_ms: float
    rate_gbps: float
    loss: float = 0.0
    jitter_ms: float = 0.0
    queue_mb: float | None = None

    def __post_init__(self) -> None:
        where = f"link {self.source}>{self.target}"
        if self.source == self.target:
            raise TopologyError(f"{where}: a link joins two different nodes; remove it")
        _check_at_least_zero(where, "one_way_delay_ms", self.one_way_delay_ms)
        _check_positive(where, "rate_gbps", self.rate_gbps)
        _check_at_least_zero(where, "jitter_ms", self.jitter_ms)
        if not 0.0 <= self.loss <= 1.0:
            raise TopologyError(f"{where}: loss is a probability from 0 to 1, not {self.loss}")
        if self.queue_mb is not None:
            _check_positive(where, "queue_mb", self.queue_mb)

    @property
    def id(self) -> LinkId:
        return (self.source, self.target)


@dataclass(frozen=True)
class Topology:
    """Islands, transit routers (nodes without an island) and directed core links.

    Raises TopologyError if two nodes share an id, a link names an unknown node or appears twice, there are fewer
    than two islands, or an island cannot reach another one.
    """

    name: str
    islands: tuple[Island, ...]
    transits: tuple[str, ...]
    links: tuple[CoreLink, ...]
    _by_link: Mapping[LinkId, CoreLink] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        nodes = [island.id for island in self.islands] + list(self.transits)
        duplicate = _first_duplicate(nodes)
        if duplicate is not None:
            raise TopologyError(f"topology {self.name!r}: two nodes have the id {duplicate!r}; ids are unique")
        if len(self.islands) < 2:
            raise TopologyError(f"topology {self.name!r}: {len(self.islands)} island(s); an exchange needs two")
        known = set(nodes)
        for link in self.links:
            for end in link.id:
                if end not in known:
                    raise TopologyError(f"link {link.source}>{link.target}: no node has the id {end!r}")
        repeated = _first_duplicate([link.id for link in self.links])
        if repeated is not None:
            raise TopologyError(f"link {repeated[0]}>{repeated[1]} appears twice; merge parallel links into one")
        object.__setattr__(self, "_by_link", {link.id: link for link in self.links})
        self._check_connected()

    def _check_connected(self) -> None:
        hub = self.islands[0].id
        backward: dict[str, list[str]] = {}
        forward: dict[str, list[str]] = {}
        for link in self.links:
            forward.setdefault(link.source, []).append(link.target)
            backward.setdefault(link.target, []).append(link.source)
        for neighbours, text in ((forward, "{hub} cannot reach {other}"), (backward, "{other} cannot reach {hub}")):
            seen = _reachable(hub, neighbours)
            for island in self.islands:
                if island.id not in seen:
                    gap = text.format(hub=f"island {hub!r}", other=f"island {island.id!r}")
                    raise TopologyError(f"topology {self.name!r}: {gap} over the core links; add one or remove it")

    @cached_property
    def island_ids(self) -> tuple[str, ...]:
        """Island ids in the order of the topology."""
        return tuple(island.id for island in self.islands)

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """All node ids: islands first, then transit routers."""
        return self.island_ids + self.transits

    def link(self, source: str, target: str) -> CoreLink:
        """The link from `source` to `target`. Raises TopologyError if there is none."""
        try:
            return self._by_link[(source, target)]
        except KeyError:
            raise TopologyError(f"topology {self.name!r} has no link {source}>{target}") from None

    def island(self, island_id: str) -> Island:
        """The island with this id. Raises TopologyError if there is none."""
        for island in self.islands:
            if island.id == island_id:
                return island
        raise TopologyError(f"topology {self.name!r} has no island {island_id!r}")

    def with_links(self, links: Iterable[CoreLink]) -> "Topology":
        """The same nodes with other links, for planning on links whose state has changed."""
        return replace(self, links=tuple(links))


def both_ways(a: str, b: str, one_way_delay_ms: float, rate_gbps: float) -> tuple[CoreLink, CoreLink]:
    """The two directions of a core link that is alike in both."""
    return CoreLink(a, b, one_way_delay_ms, rate_gbps), CoreLink(b, a, one_way_delay_ms, rate_gbps)


def _reachable(start: str, neighbours: Mapping[str, list[str]]) -> set[str]:
    seen = {start}
    todo = [start]
    while todo:
        for node in neighbours.get(todo.pop(), ()):
            if node not in seen:
                seen.add(node)
                todo.append(node)
    return seen


def _first_duplicate(items: list[_T]) -> _T | None:
    seen: set[_T] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None


def _check_positive(where: str, name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise TopologyError(f"{where}: {name} must be a finite number above 0, not {value}")


def _check_at_least_zero(where: str, name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise TopologyError(f"{where}: {name} must be a finite number of at least 0, not {value}")


def _check_degrees(where: str, name: str, value: float | None, limit: float) -> None:
    if value is not None and not (-limit <= value <= limit):
        raise TopologyError(f"{where}: {name} must be within ±{limit:g} degrees, not {value}")
