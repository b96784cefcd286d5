"""Giving ports their physics, and reading back what they have. Everything here happens in the caller's namespace."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

from testbed.links.interface import Direction, LinkError
from testbed.links.netem.parameters import (
    TCA_KIND,
    TCA_OPTIONS,
    TCA_STATS2,
    Netem,
    Policer,
    Statistics,
    every_frame,
    netem_of,
    netem_options,
    overtakes,
    parse_netem,
    parse_policer,
    parse_redirection,
    police_action,
    policer_of,
    redirect_action,
    second_netem_of,
    statistics,
)
from testbed.links.netem.rtnetlink import (
    GET_FILTER,
    GET_QDISC,
    NEW_FILTER,
    NEW_QDISC,
    KernelRefusal,
    Reply,
    TrafficControl,
    attribute,
    nested,
)

_ROOT, _ROOT_HANDLE = 0xFFFFFFFF, 0x00010000
_INSIDE, _INSIDE_HANDLE = 0x00010001, 0x00020000  # the only class of the netem at the root
_HOOKS, _HOOKS_HANDLE = 0xFFFFFFF1, 0xFFFF0000
_ARRIVING, _LEAVING = 0xFFFFFFF2, 0xFFFFFFF3
_FILTER_HANDLE = 1
# Priority, and the protocol that stands for all, in network order.
_FIRST_OF_ALL_PROTOCOLS = 1 << 16 | struct.unpack("=H", struct.pack("!H", 3))[0]
_ACTIONS_OF_REQUEST = 1

_MISSING_MODULE = (2, 95)  # ENOENT, EOPNOTSUPP


@dataclass(frozen=True)
class Port:
    """A port: its interface's number, the other port of its link, and the number of its policer."""

    interface: int
    other: int
    number: int


def open_port(control: TrafficControl, port: Port) -> None:
    """Let what arrives at a port leave by the other one. Raises LinkError."""
    _set(control, "sch_ingress", NEW_QDISC, port.interface, _HOOKS, _HOOKS_HANDLE, "clsact")
    _set_filter(control, "act_mirred", port, _ARRIVING, redirect_action(port.other))


def shape(control: TrafficControl, port: Port, direction: Direction) -> None:
    """Give what leaves an open port the physics of a direction. Raises LinkError."""
    set_netem(control, port, direction)
    if overtakes(direction):
        _set_second_netem(control, port, direction)
    _set_filter(control, "act_police", port, _LEAVING, police_action(policer_of(direction, port.number)))


def set_netem(control: TrafficControl, port: Port, direction: Direction) -> None:
    """Give what leaves a port the rate, delay and chance of a direction. Raises LinkError."""
    options = netem_options(netem_of(direction))
    _set(control, "sch_netem", NEW_QDISC, port.interface, _ROOT, _ROOT_HANDLE, "netem", options)


def _set_second_netem(control: TrafficControl, port: Port, direction: Direction) -> None:
    options = netem_options(second_netem_of(direction))
    _set(control, "sch_netem", NEW_QDISC, port.interface, _INSIDE, _INSIDE_HANDLE, "netem", options)


def reshape(control: TrafficControl, port: Port, before: Direction, direction: Direction) -> None:
    """Change what leaves a port, without touching frames or counters. Raises LinkError, with nothing changed."""
    # Once it is there it stays: to remove it would lose what it holds.
    has_second = port.interface in _netems(control, _INSIDE)
    try:
        _set_netems(control, port, direction, has_second)
        old, new = policer_of(before, port.number), policer_of(direction, port.number)
        if new != old:
            _change_policer(control, new)
    except LinkError:
        _set_netems(control, port, before, has_second)
        raise


def _set_netems(control: TrafficControl, port: Port, direction: Direction, has_second: bool) -> None:
    """The netem that has jitter, and then the one that has less delay for it, or the other way: no frame is early."""
    if overtakes(direction):
        _set_second_netem(control, port, direction)
        set_netem(control, port, direction)
    else:
        set_netem(control, port, direction)
        if has_second:
            _set_second_netem(control, port, direction)


def _change_policer(control: TrafficControl, policer: Policer) -> None:
    try:
        control.replace_action(nested(_ACTIONS_OF_REQUEST, police_action(policer)))
    except KernelRefusal as error:
        raise LinkError(f"cannot change the queue's bound: {error}") from error


def confirm(control: TrafficControl, asked: Mapping[Port, Direction]) -> list[str]:
    """Compare what ports have with what was asked for. Returns warnings; raises LinkError at the first difference."""
    first, second = _netems(control), _netems(control, _INSIDE)
    unseeded = False
    for port, direction in asked.items():
        replies = {"netem": (first.get(port.interface), netem_of(direction))}
        if overtakes(direction) or port.interface in second:
            replies["second netem"] = (second.get(port.interface), second_netem_of(direction))
        for what, (reply, wanted) in replies.items():
            netem = parse_netem(reply.attributes[TCA_OPTIONS]) if reply else None
            takes_seed = netem is None or netem.seed is not None
            unseeded = unseeded or (not takes_seed and _has_chance(wanted))
            _compare(what, netem, wanted if takes_seed else replace(wanted, seed=None))
        try:
            policer, _ = parse_policer(_filter(control, port, _LEAVING))
            target = parse_redirection(_filter(control, port, _ARRIVING))
        except (KeyError, IndexError, struct.error) as error:
            raise LinkError(f"a port's filter is not what was set: {error}; use --links delayline") from error
        _compare("queue's policer", policer, policer_of(direction, port.number))
        _compare("port's target", target, port.other)
    if unseeded:
        return ["this kernel's netem takes no seed: chance falls otherwise in each run"]
    return []


def counted(control: TrafficControl, ports: list[Port]) -> dict[Port, tuple[Statistics, Statistics]]:
    """What the policer and what netem of each port have counted."""
    disciplines = _netems(control)
    return {
        port: (
            parse_policer(_filter(control, port, _LEAVING))[1],
            statistics(disciplines[port.interface].attributes[TCA_STATS2]),
        )
        for port in ports
    }


def _has_chance(netem: Netem) -> bool:
    return bool(netem.loss or netem.gilbert_elliott or netem.jitter_ns or netem.duplicate or netem.corrupt)


def _compare(what: str, found: Netem | Policer | int | None, wanted: Netem | Policer | int) -> None:
    if found != wanted:
        raise LinkError(f"{what}: asked for {wanted}, but {found} was applied; use --links delayline")


def _netems(control: TrafficControl, parent: int = _ROOT) -> dict[int, Reply]:
    return {
        reply.interface: reply
        for reply in control.get(GET_QDISC)
        if reply.parent == parent and reply.attributes[TCA_KIND] == b"netem\0"
    }


def _filter(control: TrafficControl, port: Port, hook: int) -> bytes:
    # Of a filter's replies the first only names the chain.
    replies = [reply for reply in control.get(GET_FILTER, port.interface, hook) if reply.handle == _FILTER_HANDLE]
    return replies[0].attributes[TCA_OPTIONS]


def _set_filter(control: TrafficControl, module: str, port: Port, hook: int, action: bytes) -> None:
    modules = f"cls_matchall or {module}"
    _set(control, modules, NEW_FILTER, port.interface, hook, _FILTER_HANDLE, "matchall", every_frame(action))


def _set(
    control: TrafficControl,
    module: str,
    what: int,
    interface: int,
    parent: int,
    handle: int,
    kind: str,
    *options: bytes,
) -> None:
    info = _FIRST_OF_ALL_PROTOCOLS if what == NEW_FILTER else 0
    try:
        control.set(what, interface, parent, handle, info, attribute(TCA_KIND, kind.encode() + b"\0"), *options)
    except KernelRefusal as error:
        if error.code in _MISSING_MODULE:
            raise LinkError(
                f"this kernel lacks {module} ({error}): boot one that has it, such as Debian's linux-image-amd64, "
                "or use --links delayline"
            ) from error
        raise LinkError(f"the kernel refuses {module} ({error}); use --links delayline") from error
