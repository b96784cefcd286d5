"""Groups and trees: one source-specific group per flow and distinct tree, in 232.0.0.0/8.

Island i's tree n of shard s has the group 232.(i+1).(s).(n), n from 1 on, so a city's groups are a prefix of their own.
Its source is an address of the host that sends shard s. A host has several addresses: a router that finds its way by
reverse path forwarding knows one way back per source address, so trees that disagree about it get different ones.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from scheduler.plan import Flow, Plan
from testbed.errors import TestbedError
from testbed.network import naming

SSM_BASE = int(IPv4Address("232.0.0.0"))
MAX_TREES = 254

TreeKey = tuple[int, str, int]
"""(phase, source island, shard)"""


@dataclass(frozen=True)
class Tree:
    """A multicast tree: directed core links from the source's router outwards, and the islands it serves.

    `address` is the source address of its packets.
    """

    group: str
    source: str
    receivers: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    address: str
    shard: int = 0


@dataclass(frozen=True)
class Forwarding:
    """One router's entry for a tree: the neighbour it arrives from and those it goes on to; None is its own island."""

    arrives_from: str | None
    goes_to: tuple[str | None, ...]


def allocate_trees(
    plan: Plan,
    island_ids: Mapping[str, int],
    hosts: int = 1,
    live: Collection[Tree] = (),
    used_groups: Collection[str] = (),
) -> dict[TreeKey, Tree]:
    """The tree of each flow and shard of `plan`; flows with equal trees share one.

    No group is that of a `live` tree, nor a used one while there are others; and no source address has two ways back to
    it at any router, live trees included, while there are addresses left. Raises TestbedError when a source needs more
    trees than there are groups.
    """
    trees: dict[TreeKey, Tree] = {}
    allocators = {
        (name, shard): _Allocator(
            name, island_id, shard, [tree for tree in live if _is_of(tree, name, shard)], frozenset(used_groups)
        )
        for name, island_id in island_ids.items()
        for shard in range(hosts)
    }
    for phase, planned_round in enumerate(plan.rounds):
        for flow in planned_round.flows:
            for shard in range(hosts):
                trees[phase, flow.source, shard] = allocators[flow.source, shard].tree(flow)
    return trees


def _is_of(tree: Tree, source: str, shard: int) -> bool:
    return (tree.source, tree.shard) == (source, shard)


@dataclass
class _Allocator:
    """Hands out groups and source addresses of one host."""

    source: str
    island_id: int
    shard: int
    live: list[Tree]
    used_groups: frozenset[str]
    trees: dict[tuple[frozenset[str], frozenset[tuple[str, str]]], Tree] = field(default_factory=dict)

    def tree(self, flow: Flow) -> Tree:
        key = frozenset(flow.receivers), frozenset(flow.links)
        if key not in self.trees:
            self.trees[key] = Tree(
                self._free_group(), self.source, flow.receivers, flow.links, self._address(flow), self.shard
            )
        return self.trees[key]

    def _free_group(self) -> str:
        taken = {tree.group for tree in (*self.live, *self.trees.values())}
        base = SSM_BASE + ((self.island_id + 1) << 16) + (self.shard << 8)
        free = [group for number in range(MAX_TREES) if (group := str(IPv4Address(base + number + 1))) not in taken]
        for group in free:
            if group not in self.used_groups:
                return group
        if free:
            return free[0]
        raise TestbedError(
            f"island {self.source} needs more than {MAX_TREES} multicast trees; use a policy with fewer rounds"
        )

    def _address(self, flow: Flow) -> str:
        """The first address whose trees agree with the flow's; the last one where none does."""
        address = ""
        for number in range(naming.MAX_HOST_ADDRESSES):
            address = naming.host_address(self.island_id, self.shard + 1, number)
            ways_back = parents(tree for tree in (*self.live, *self.trees.values()) if tree.address == address)
            if all(ways_back.get(child, {parent}) == {parent} for parent, child in flow.links):
                break
        return address


def parents(trees: Iterable[Tree]) -> dict[str, set[str]]:
    """From which neighbours the trees reach each router but their sources'."""
    found: dict[str, set[str]] = {}
    for tree in trees:
        for parent, child in tree.links:
            found.setdefault(child, set()).add(parent)
    return found


def forwarding(tree: Tree) -> dict[str, Forwarding]:
    """What each router on `tree` does with its packets, by router."""
    arrives_from: dict[str, str | None] = {tree.source: None}
    children: dict[str, list[str | None]] = {tree.source: []}
    for parent, child in tree.links:
        arrives_from[child] = parent
        children.setdefault(parent, []).append(child)
        children.setdefault(child, [])
    for receiver in tree.receivers:
        children[receiver].append(None)
    return {router: Forwarding(arrives_from[router], tuple(children[router])) for router in children}
