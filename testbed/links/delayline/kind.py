"""The link kind `delayline`: checks, builds and runs links that a program of this package carries."""

import os
import socket
from collections.abc import Mapping, Sequence

from testbed.links.awake import Awake
from testbed.links.checks import wrong_link
from testbed.links.delayline.control import PROGRAM, Control
from testbed.links.delayline.messages import parse_counters, parse_direction, settings
from testbed.links.delayline.sizes import (
    arena_bytes,
    available_memory_bytes,
    memory_bytes,
    ring_slots,
    rings_can_be_generous,
    wrong_direction,
)
from testbed.links.interface import Direction, DirectionCounters, Link, LinkError
from testbed.links.veth import PairEnd, bring_up, make_pairs

# As in interfaces.h: the program removes the interfaces of this group.
_INTERFACE_GROUP = 1


class DelayLine:
    """Links whose frames a userspace program holds back; needs packet sockets only."""

    name = "delayline"

    def refusal(self, links: Sequence[Link]) -> str | None:
        """Why these links cannot be had: one line with the way out; None if they can. Changes nothing."""
        if os.geteuid() != 0:
            return "links of kind delayline need root: run with sudo"
        if not os.access(PROGRAM, os.X_OK):
            return f"{PROGRAM} is not built: run `python setup.py build_ext --inplace`, or provision again"
        try:
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
        except OSError as error:
            return f"no packet sockets here ({error.strerror}): load the module af_packet, or use --links netem"
        wrong = wrong_link(links, wrong_direction)
        if wrong:
            return wrong
        needed, available = memory_bytes(links), available_memory_bytes()
        if needed > available // 2:
            return (
                f"the links can hold {needed / 1e9:.1f} GB of frames, more than half of the {available / 1e9:.1f} GB "
                "of memory that are free; lower the rate scale, delays or queues"
            )
        return None

    def build(self, links: Sequence[Link], namespaces: Mapping[str, int], run_id: str) -> "RunningDelayLine":
        """Make and start all links; see `LinkKind.build`."""
        refusal = self.refusal(links)
        if refusal:
            raise LinkError(refusal)
        control, awake = Control(run_id), Awake()
        try:
            _make_interfaces(links, namespaces, control.pid)
            generous = rings_can_be_generous(links)
            for index, link in enumerate(links):
                _open(control, index, link, generous)
            running = RunningDelayLine(links, control, awake)
            running.start()
        except BaseException:
            control.stop()
            awake.close()
            raise
        return running


class RunningDelayLine:
    """Links in operation; see `RunningLinks`."""

    def __init__(self, links: Sequence[Link], control: Control, awake: Awake) -> None:
        self.warnings: Sequence[str] = ()
        self._control = control
        self._awake = awake
        self._links = {frozenset((link.a.node, link.b.node)): index for index, link in enumerate(links)}
        # In the order of the program's numbers: link n has direction 2n, from a to b, and 2n + 1.
        self._asked = {
            ends: direction
            for link in links
            for ends, direction in (
                ((link.a.node, link.b.node), link.forward),
                ((link.b.node, link.a.node), link.backward),
            )
        }
        self._in_force: dict[tuple[str, str], Direction] = {}

    def start(self) -> None:
        """Give every direction its physics, and let frames pass. To be called once."""
        for ends, direction in self._asked.items():
            self._set(ends, settings(direction))
        started = self._control.ask("start")
        warnings = []
        if started["realtime"] != "1":
            warnings.append("links run without real-time priority: frames may be milliseconds late on a busy machine")
        if started["locked"] != "1":
            warnings.append("the links' memory is not locked: frames may be late when memory is short")
        self.warnings = tuple(warnings)

    def counters(self) -> Mapping[tuple[str, str], DirectionCounters]:
        """Counters by (sending node, receiving node). Raises LinkError if the links are closed or have failed."""
        rows = self._control.ask_rows("counters", row="direction")
        return {ends: parse_counters(row) for ends, row in zip(self._asked, rows, strict=True)}

    def directions(self) -> Mapping[tuple[str, str], Direction]:
        """The physics in force, as the program gave it back."""
        return dict(self._in_force)

    def change(self, sender: str, receiver: str, direction: Direction) -> None:
        """Change one direction of running links. Raises LinkError, with nothing changed."""
        ends = (sender, receiver)
        if ends not in self._in_force:
            raise LinkError(f"no link from {sender} to {receiver}")
        wrong = wrong_direction(direction)
        if wrong:
            raise LinkError(f"{sender}>{receiver}: {wrong}")
        before = settings(self._in_force[ends])
        self._set(ends, {name: value for name, value in settings(direction).items() if value != before[name]})

    def set_up(self, a: str, b: str, up: bool) -> None:
        """Take the link between two nodes down, or up again."""
        index = self._links.get(frozenset((a, b)))
        if index is None:
            raise LinkError(f"no link between {a} and {b}")
        self._control.ask(f"{'up' if up else 'down'} link={index}")

    def close(self) -> None:
        """End the emulation and remove its interfaces. Safe to call twice."""
        self._control.stop()
        self._awake.close()

    def _set(self, ends: tuple[str, str], asked: Mapping[str, int | float]) -> None:
        index = list(self._asked).index(ends)
        words = "".join(f" {name}={value!r}" for name, value in asked.items())
        try:
            applied = self._control.ask(f"set direction={index}{words}")
        except LinkError as error:
            raise LinkError(f"{ends[0]}>{ends[1]}: {error}") from error
        for name, value in asked.items():
            if float(applied[name]) != float(value):
                raise LinkError(f"{ends[0]}>{ends[1]}: asked for {name} {value}, but {applied[name]} was applied")
        self._in_force[ends] = parse_direction(applied)


def _line_ends(index: int) -> tuple[str, str]:
    return f"l{index}a", f"l{index}b"


def _make_interfaces(links: Sequence[Link], namespaces: Mapping[str, int], line_pid: int) -> None:
    pairs = []
    line_ends = []
    by_node: dict[str, list[str]] = {}
    for index, link in enumerate(links):
        for line_end, end in zip(_line_ends(index), (link.a, link.b), strict=True):
            pairs.append((PairEnd(line_end, line_pid), PairEnd(end.interface, namespaces[end.node])))
            line_ends.append(line_end)
            by_node.setdefault(end.node, []).append(end.interface)
    make_pairs(pairs, _INTERFACE_GROUP)
    bring_up(line_pid, line_ends)
    for node, interfaces in by_node.items():
        bring_up(namespaces[node], interfaces)


def _open(control: Control, index: int, link: Link, generous: bool) -> None:
    """Have the program open the link's ends; it answers at once, and opens all ends side by side."""
    a, b = _line_ends(index)
    control.ask(
        f"link a={a} b={b} "
        f"slots_forward={ring_slots(link.forward, generous)} arena_forward={arena_bytes(link.forward)} "
        f"slots_backward={ring_slots(link.backward, generous)} arena_backward={arena_bytes(link.backward)}"
    )
