"""The link kind `delayline`: checks, builds and runs links that a program of this package carries."""

import os
import socket
from collections.abc import Mapping, Sequence

from testbed.links.delayline.control import PROGRAM, Control
from testbed.links.delayline.sizes import arena_bytes, available_memory_bytes, memory_bytes, ring_slots, wrong_link
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
        wrong = wrong_link(links)
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
        control = Control(run_id)
        try:
            _make_interfaces(links, namespaces, control.pid)
            for index, link in enumerate(links):
                _open(control, index, link)
            for index, link in enumerate(links):
                _configure(control, index, link)
            started = control.ask("start")
        except BaseException:
            control.stop()
            raise
        return RunningDelayLine(links, control, _warnings(started))


class RunningDelayLine:
    """Links in operation; `warnings` says what this machine did not grant, and what that costs."""

    def __init__(self, links: Sequence[Link], control: Control, warnings: Sequence[str]) -> None:
        self._links = tuple(links)
        self._control = control
        self.warnings = tuple(warnings)

    def counters(self) -> Mapping[tuple[str, str], DirectionCounters]:
        """Counters by (sending node, receiving node). Raises LinkError if the links are closed or have failed."""
        rows = iter(self._control.ask_rows("counters", row="direction"))
        counters = {}
        for link in self._links:
            counters[link.a.node, link.b.node] = _counters(next(rows))
            counters[link.b.node, link.a.node] = _counters(next(rows))
        return counters

    def close(self) -> None:
        """End the emulation and remove its interfaces. Safe to call twice."""
        self._control.stop()


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


def _open(control: Control, index: int, link: Link) -> None:
    """Have the program open the link's ends; it answers at once, and opens all ends side by side."""
    a, b = _line_ends(index)
    control.ask(
        f"link a={a} b={b} "
        f"slots_forward={ring_slots(link.forward)} arena_forward={arena_bytes(link.forward)} "
        f"slots_backward={ring_slots(link.backward)} arena_backward={arena_bytes(link.backward)}"
    )


def _configure(control: Control, index: int, link: Link) -> None:
    try:
        _set(control, 2 * index, link.forward)
        _set(control, 2 * index + 1, link.backward)
    except LinkError as error:
        raise LinkError(f"link {link.name}: {error}") from error


def _set(control: Control, index: int, direction: Direction) -> None:
    asked = {
        "delay_ns": direction.one_way_delay_ns,
        "rate_bps": direction.rate_bps,
        "queue_bytes": direction.queue_bytes,
        "loss": direction.loss,
        "seed": direction.seed,
    }
    words = " ".join(f"{name}={value!r}" for name, value in asked.items())
    applied = control.ask(f"set direction={index} {words}")
    for name, value in asked.items():
        if float(applied[name]) != float(value):
            raise LinkError(f"asked for {name} {value}, but {applied[name]} was applied")


def _warnings(started: Mapping[str, str]) -> list[str]:
    warnings = []
    if started["realtime"] != "1":
        warnings.append(
            "links run without real-time priority: expect frames milliseconds late when processors are busy"
        )
    if started["locked"] != "1":
        warnings.append("the links' memory is not locked: expect late frames when memory is short")
    return warnings


def _counters(row: Mapping[str, str]) -> DirectionCounters:
    other = ("dropped_overflow", "dropped_room", "dropped_send", "dropped_down", "dropped_cut")
    return DirectionCounters(
        frames_in=int(row["frames_in"]),
        bytes_in=int(row["bytes_in"]),
        frames_out=int(row["frames_out"]),
        bytes_out=int(row["bytes_out"]),
        dropped_queue=int(row["dropped_queue"]),
        dropped_loss=int(row["dropped_loss"]),
        dropped_other=sum(int(row[name]) for name in other),
        queue_high_water_bytes=int(row["queue_high_water_bytes"]),
        worst_lateness_ns=int(row["worst_lateness_ns"]),
    )
