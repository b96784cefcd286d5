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
    assert trees[0, "a"].group == "232.1.0.1"
    assert trees[1, "a"].group == "232.1.0.2"
    assert trees[2, "a"] == trees[0, "a"]
    assert trees[2, "b"].group == "232.2.0.1"


def test_forwarding_follows_the_tree_and_leaves_at_receivers_only() -> None:
    tree = Tree("232.1.0.1", "a", ("b", "d"), (("a", "b"), ("b", "t"), ("t", "d")))
    assert forwarding(tree) == {
        "a": Forwarding(None, ("b",)),
        "b": Forwarding("a", ("t", None)),
        "t": Forwarding("b", ("d",)),
        "d": Forwarding("t", (None,)),
    }
