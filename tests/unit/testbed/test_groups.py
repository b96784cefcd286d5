"""Groups: one per flow and distinct tree; forwarding entries: exactly the tree."""

from scheduler.plan import Flow
from testbed.multicast.groups import Forwarding, Tree, allocate_trees, forwarding
from tests.unit.testbed.plans import make_plan


def _flow(source: str, *links: tuple[str, str]) -> Flow:
    return Flow(source, tuple(child for _, child in links), links, 0, 100, 10)


def test_equal_trees_share_a_group_and_others_do_not() -> None:
    ab, ac = _flow("a", ("a", "b")), _flow("a", ("a", "c"))
    plan = make_plan([[ab], [ac], [ab, _flow("b", ("b", "a"))]])
    trees = allocate_trees(plan, {"a": 0, "b": 1, "c": 2})
    assert trees[0, "a", 0].group == "232.1.0.1"
    assert trees[1, "a", 0].group == "232.1.0.2"
    assert trees[2, "a", 0] == trees[0, "a", 0]
    assert trees[2, "b", 0].group == "232.2.0.1"


def test_trees_that_agree_share_a_source_address_and_others_do_not() -> None:
    over_b, over_d = _flow("a", ("a", "b"), ("b", "c")), _flow("a", ("a", "d"), ("d", "c"))
    short = _flow("a", ("a", "d"))
    trees = allocate_trees(make_plan([[over_b], [over_d], [short]]), {"a": 0, "b": 1, "c": 2, "d": 3})
    assert [trees[phase, "a", 0].address for phase in range(3)] == ["10.1.0.10", "10.1.0.26", "10.1.0.10"]


def test_each_host_has_trees_of_its_own() -> None:
    trees = allocate_trees(make_plan([[_flow("b", ("b", "a"))]]), {"a": 0, "b": 1}, hosts=2)
    assert [(tree.group, tree.address, tree.shard) for tree in trees.values()] == [
        ("232.2.0.1", "10.1.1.10", 0),
        ("232.2.1.1", "10.1.1.11", 1),
    ]


def test_a_new_epochs_trees_leave_those_that_are_live_alone() -> None:
    islands = {"a": 0, "b": 1, "c": 2, "d": 3}
    live = list(allocate_trees(make_plan([[_flow("a", ("a", "b"), ("b", "c"))]]), islands).values())
    new = allocate_trees(make_plan([[_flow("a", ("a", "d"), ("d", "c"))]]), islands, live=live)[0, "a", 0]
    assert (new.group, new.address) == ("232.1.0.2", "10.1.0.26")
    later = allocate_trees(make_plan([[_flow("a", ("a", "d"), ("d", "c"))]]), islands, live=[new])[0, "a", 0]
    assert (later.group, later.address) == ("232.1.0.1", "10.1.0.10")


def test_forwarding_follows_the_tree_and_leaves_at_receivers_only() -> None:
    tree = Tree("232.1.0.1", "a", ("b", "d"), (("a", "b"), ("b", "t"), ("t", "d")), "10.1.0.10")
    assert forwarding(tree) == {
        "a": Forwarding(None, ("b",)),
        "b": Forwarding("a", ("t", None)),
        "t": Forwarding("b", ("d",)),
        "d": Forwarding("t", (None,)),
    }
