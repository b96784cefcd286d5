"""The link kind `netem`: checks, builds and runs links that the kernel carries."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.links.awake import Awake
from testbed.links.checks import wrong_link
from testbed.links.interface import Direction, DirectionCounters, Link, LinkError
from testbed.links.netem.line import PORT_GROUP, Line, PortTraffic, port_indices, port_traffic, set_ports_up
from testbed.links.netem.parameters import Statistics, in_force, wrong_direction
from testbed.links.netem.rtnetlink import TrafficControl
from testbed.links.netem.shaping import Port, confirm, counted, open_port, reshape, set_netem, shape
from testbed.links.veth import PairEnd, bring_up, make_pairs

Ends = tuple[str, str]  # sending node, receiving node

_LOOPBACK = Port(interface=1, other=1, number=1)
_TRIAL = Direction(one_way_delay_ns=1_000_000, rate_bps=100_000_000, queue_bytes=100_000, loss=0.01)


class Netem:
    """Links whose frames the kernel's netem delays and serialises; needs a kernel that has it."""

    name = "netem"

    def refusal(self, links: Sequence[Link]) -> str | None:
        """Why these links cannot be had: one line with the way out; None if they can.

        Tries, in a namespace that is gone afterwards; the kernel may load its modules. Changes nothing else.
        """
        if os.geteuid() != 0:
            return "links of kind netem need root: run with sudo"
        wrong = wrong_link(links, wrong_direction)
        if wrong:
            return wrong
        try:
            line = Line()
            try:
                line.act(_try)
            finally:
                line.close()
        except LinkError as error:
            return str(error)
        return None

    def build(self, links: Sequence[Link], namespaces: Mapping[str, int], run_id: str) -> "RunningNetem":
        """Make and start all links; see `LinkKind.build`. Nothing outlives this process, so nothing is marked."""
        refusal = self.refusal(links)
        if refusal:
            raise LinkError(refusal)
        line, awake = Line(), Awake()
        try:
            _make_interfaces(links, namespaces, line.pid)
            running = RunningNetem(links, line, awake)
            running.start()
        except BaseException:
            line.close()
            awake.close()
            raise
        return running


@dataclass
class _Way:
    """One direction in operation: the port that sends its frames, and what cannot be counted while the link is down.

    `has_duplicates`: whether there ever may have been some.
    """

    port: Port
    name: str
    direction: Direction
    has_duplicates: bool = False
    dropped_down: int = 0
    duplicated: int = 0


class RunningNetem:
    """Links in operation; see `RunningLinks`."""

    def __init__(self, links: Sequence[Link], line: Line, awake: Awake) -> None:
        self.warnings: Sequence[str] = ()
        self._line = line
        self._awake = awake
        self._ways: dict[Ends, _Way] = {}
        self._down: set[frozenset[str]] = set()
        indices = line.act(port_indices)
        for number, link in enumerate(links):
            port_a, port_b = (indices[name] for name in _port_names(number))
            towards_a, towards_b = Port(port_a, port_b, 2 * number + 2), Port(port_b, port_a, 2 * number + 1)
            name_a, name_b = _port_names(number)
            self._ways[link.a.node, link.b.node] = _Way(towards_b, name_b, link.forward, link.forward.duplicate > 0)
            self._ways[link.b.node, link.a.node] = _Way(towards_a, name_a, link.backward, link.backward.duplicate > 0)

    def start(self) -> None:
        """Give every direction its physics, and let frames pass. To be called once. Raises LinkError."""

        def act() -> list[str]:
            with TrafficControl() as control:
                for way in self._ways.values():
                    open_port(control, way.port)
                for way in self._ways.values():
                    shape(control, way.port, way.direction)
                return confirm(control, {way.port: way.direction for way in self._ways.values()})

        self.warnings = tuple(self._line.act(act))
        # Last: no frame passes before every direction has its physics.
        bring_up(self._line.pid, [way.name for way in self._ways.values()])

    def counters(self) -> Mapping[Ends, DirectionCounters]:
        """Counters by (sending node, receiving node). Raises LinkError if the links are closed."""

        def act() -> tuple[dict[Port, tuple[Statistics, Statistics]], dict[str, PortTraffic]]:
            with TrafficControl() as control:
                return counted(control, [way.port for way in self._ways.values()]), port_traffic()

        disciplines, traffic = self._line.act(act)
        return {
            ends: self._counters(ends, way, *disciplines[way.port], traffic[way.name])
            for ends, way in self._ways.items()
        }

    def directions(self) -> Mapping[Ends, Direction]:
        """The physics in force; the kernel has confirmed it."""
        return {ends: in_force(way.direction) for ends, way in self._ways.items()}

    def change(self, sender: str, receiver: str, direction: Direction) -> None:
        """Change one direction of running links. Raises LinkError, with nothing changed.

        Another rate or queue makes the policer forget what is waiting: once, a whole queue more may wait.
        """
        way = self._ways.get((sender, receiver))
        if way is None:
            raise LinkError(f"no link from {sender} to {receiver}")
        wrong = wrong_direction(direction)
        if wrong:
            raise LinkError(f"{sender}>{receiver}: {wrong}")

        def act() -> None:
            with TrafficControl() as control:
                reshape(control, way.port, way.direction, direction)
                try:
                    confirm(control, {way.port: direction})
                except LinkError:
                    reshape(control, way.port, direction, way.direction)
                    raise

        self._line.act(act)
        way.direction = direction
        way.has_duplicates |= direction.duplicate > 0

    def set_up(self, a: str, b: str, up: bool) -> None:
        """Take the link between two nodes down, or up again."""
        ways = [self._ways[ends] for ends in ((a, b), (b, a)) if ends in self._ways]
        if not ways:
            raise LinkError(f"no link between {a} and {b}")
        link = frozenset((a, b))
        counters = self.counters()
        for ends in ((a, b), (b, a)):
            self._ways[ends].dropped_down = counters[ends].dropped_down
            self._ways[ends].duplicated = counters[ends].duplicated
        self._down.discard(link)
        self._line.act(lambda: set_ports_up([way.port.interface for way in ways], up))
        if not up:
            self._down.add(link)

    def close(self) -> None:
        """End the emulation and remove its interfaces. Safe to call twice."""
        self._line.close()
        self._awake.close()

    def _counters(
        self, ends: Ends, way: _Way, policer: Statistics, netem: Statistics, traffic: PortTraffic
    ) -> DirectionCounters:
        admitted, released = policer.frames - policer.drops, traffic.frames + traffic.refused
        dropped_down, duplicated = way.dropped_down, way.duplicated
        if frozenset(ends) in self._down:
            # A queueing discipline empties without counting when its interface goes down: what is nowhere else.
            dropped_down = admitted + duplicated - netem.drops - released
        elif way.has_duplicates:
            # netem does not count them: what came of it, or is in it, and never went in.
            duplicated = max(netem.frames + netem.held + netem.drops + dropped_down - admitted, 0)
        return DirectionCounters(
            frames_in=policer.frames,
            bytes_in=policer.bytes,
            frames_out=traffic.frames,
            bytes_out=traffic.bytes,
            dropped_queue=policer.drops,
            dropped_loss=netem.drops,
            dropped_other=traffic.refused,
            queue_high_water_bytes=None,
            worst_lateness_ns=None,
            dropped_down=dropped_down,
            duplicated=duplicated,
            corrupted=None,
            reordered=None,
        )


def _try() -> None:
    """Do once, with this namespace's loopback interface, all that links need of the kernel. Raises LinkError."""
    with TrafficControl() as control:
        set_netem(control, _LOOPBACK, _TRIAL)  # first: if anything is missing, it is this
        open_port(control, _LOOPBACK)
        shape(control, _LOOPBACK, _TRIAL)
        confirm(control, {_LOOPBACK: _TRIAL})


def _port_names(number: int) -> tuple[str, str]:
    return f"l{number}a", f"l{number}b"


def _make_interfaces(links: Sequence[Link], namespaces: Mapping[str, int], line_pid: int) -> None:
    pairs = []
    by_node: dict[str, list[str]] = {}
    for number, link in enumerate(links):
        for port, end in zip(_port_names(number), (link.a, link.b), strict=True):
            pairs.append((PairEnd(port, line_pid), PairEnd(end.interface, namespaces[end.node])))
            by_node.setdefault(end.node, []).append(end.interface)
    make_pairs(pairs, PORT_GROUP)
    for node, interfaces in by_node.items():
        bring_up(namespaces[node], interfaces)
