"""Shortest-delay trees: delays, ties, pruning, copies."""

import pytest

from scheduler.errors import TopologyError
from scheduler.topology import Topology
from scheduler.trees import Routes
from testbed.topology.nine_city import nine_city
from tests.unit.scheduler.shapes import topology


def test_a_link_carries_a_stream_once() -> None:
    where = topology(("a", "x", 1), ("x", "b", 2), ("x", "c", 3), transits="x")
    tree = Routes(where).tree("a", ["b", "c"])
    assert tree.links == (("a", "x"), ("x", "b"), ("x", "c"))
    assert tree.copies() == {("a", "x"): 2, ("x", "b"): 1, ("x", "c"): 1}
    assert tree.delays_ms(where) == {"b": 3, "c": 4}
    assert tree.path("c") == (("a", "x"), ("x", "c"))


def test_links_run_outwards() -> None:
    routes = Routes(nine_city())
    for source in nine_city().island_ids:
        tree = routes.tree(source, [i for i in nine_city().island_ids if i != source])
        reached = {source}
        for sender, receiver in tree.links:
            assert sender in reached
            assert receiver not in reached
            reached.add(receiver)
        assert reached == set(nine_city().island_ids)


def test_known_delays() -> None:
    routes = Routes(nine_city())
    assert routes.delay_ms("tyo", "lon") == pytest.approx(134.5)
    assert routes.delay_ms("nyc", "ams") == pytest.approx(44)
    assert routes.delay_ms("lon", "sin") == pytest.approx(99)


def test_ties_go_to_fewer_hops_then_to_the_order_of_the_topology() -> None:
    square = topology(("a", "b", 0.1), ("b", "d", 0.2), ("a", "c", 0.2), ("c", "d", 0.1))
    assert Routes(square).tree("a", ["d"]).links == (("a", "b"), ("b", "d"))
    reordered = Topology(square.name, square.islands, square.transits, square.links[::-1])
    assert Routes(reordered).tree("a", ["d"]).links == (("a", "b"), ("b", "d"))
    direct = topology(("a", "b", 0.1), ("b", "c", 0.2), ("a", "c", 0.3))
    assert Routes(direct).tree("a", ["c"]).links == (("a", "c"),)


def test_unknown_islands_are_named() -> None:
    with pytest.raises(TopologyError, match="'zzz'"):
        Routes(nine_city()).tree("nyc", ["zzz"])
