"""Groups and trees: one source-specific group per flow and distinct tree, in 232.0.0.0/8.

Island i's tree n for shard s has the group 232.(i+1).(s).(n+1), so a city's groups are a prefix of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from scheduler.plan import Flow, Plan
from testbed.errors import TestbedError

SSM_BASE = int(IPv4Address("232.0.0.0"))
MAX_TREES = 254


@dataclass(frozen=True)
class Tree:
    """A multicast tree: directed core links from the source's router outwards, and the islands it serves."""

    group: str
    source: str
    receivers: tuple[str, ...]
    links: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Forwarding:
    """One router's entry for a tree: the neighbour it arrives from and those it goes on to; None is its own island."""

    arrives_from: str | None
    goes_to: tuple[str | None, ...]


def allocate_trees(plan: Plan, island_ids: Mapping[str, int]) -> dict[tuple[int, str], Tree]:
    """The tree of each flow of `plan`, by (phase, source island); flows with equal trees share one.

    Raises TestbedError when a source needs more trees than there are groups.
    """
    trees: dict[tuple[str, frozenset[str], frozenset[tuple[str, str]]], Tree] = {}
    allocated: dict[str, int] = {}
    flows: dict[tuple[int, str], Tree] = {}
    for phase, planned_round in enumerate(plan.rounds):
        for flow in planned_round.flows:
            key = (flow.source, frozenset(flow.receivers), frozenset(flow.links))
            if key not in trees:
                number = allocated.get(flow.source, 0)
                trees[key] = _tree(flow, island_ids[flow.source], number)
                allocated[flow.source] = number + 1
            flows[phase, flow.source] = trees[key]
    return flows


def _tree(flow: Flow, island_id: int, number: int) -> Tree:
    if number >= MAX_TREES:
        raise TestbedError(
            f"island {flow.source} needs more than {MAX_TREES} multicast trees; use a policy with fewer rounds"
        )
    group = str(IPv4Address(SSM_BASE + ((island_id + 1) << 16) + number + 1))
    return Tree(group, flow.source, flow.receivers, flow.links)


def forwarding(tree: Tree) -> dict[str, Forwarding]:
    """What each router on `tree` does with its packets, by router."""
    parents: dict[str, str | None] = {tree.source: None}
    children: dict[str, list[str | None]] = {tree.source: []}
    for parent, child in tree.links:
        parents[child] = parent
        children.setdefault(parent, []).append(child)
        children.setdefault(child, [])
    for receiver in tree.receivers:
        children[receiver].append(None)
    return {router: Forwarding(parents[router], tuple(children[router])) for router in children}
