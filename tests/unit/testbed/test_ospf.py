"""OSPF on the plane `pim`: which trees it can run, and what the routers are told."""

import pytest

from scheduler.topology import Island, Topology, both_ways
from testbed.errors import TestbedError
from testbed.multicast.groups import Tree
from testbed.multicast.ospf import Ospf
from testbed.multicast.planes import choose_plane, make_ospf

SIDES = {"ab": 1.0, "bc": 2.0, "cd": 3.0, "da": 7.0}
OVER_B = Tree("232.1.0.1", "a", ("c",), (("a", "b"), ("b", "c")), "10.1.0.10")
OVER_D = Tree("232.1.0.2", "a", ("c",), (("a", "d"), ("d", "c")), "10.1.0.10")


def _square(**changed: float) -> Topology:
    sides = {**SIDES, **changed}
    links = tuple(link for (a, b), delay_ms in sides.items() for link in both_ways(a, b, delay_ms, 100.0))
    return Topology("square", tuple(Island(name) for name in "abcd"), (), links)


def test_trees_of_shortest_delay_are_taken() -> None:
    assert Ospf(bfd=False).refusal(_square(), [OVER_B]) is None


def test_a_tree_that_makes_a_detour_is_refused_with_the_way_out() -> None:
    refusal = Ospf(bfd=False).refusal(_square(), [OVER_B, OVER_D])
    assert refusal is not None
    assert "a tree of island a reaches router d from a, but OSPF's shortest way back is over c" in refusal
    assert "--trees shortest" in refusal


def test_ways_that_are_equally_short_are_refused() -> None:
    refusal = Ospf(bfd=False).refusal(_square(cd=3.0, da=6.0), [Tree("g", "a", ("d",), (("a", "d"),), "10.1.0.10")])
    assert refusal is not None
    assert "router d has equally short ways back to island a, over a and c" in refusal


def test_delays_beyond_the_largest_cost_are_refused() -> None:
    refusal = Ospf(bfd=False).refusal(_square(cd=700.0), [])
    assert refusal is not None
    assert "link c>d: OSPF's costs end at 655.35 ms" in refusal


def test_the_cost_of_an_interface_is_the_delay_of_what_arrives_there() -> None:
    topology = _square()
    slower = topology.with_links(
        type(link)(link.source, link.target, 9.5 if link.id == ("b", "a") else link.one_way_delay_ms, 100.0)
        for link in topology.links
    )
    of_a = Ospf(bfd=False).configurations(slower, "a")["ospfd"]
    of_b = Ospf(bfd=False).configurations(slower, "b")["ospfd"]
    assert "interface c-b\n ip ospf area 0\n ip ospf network point-to-point\n ip ospf cost 950\n" in of_a
    assert "ip ospf cost 100\n" in of_b
    assert "bfd" not in of_a


def test_times_are_dilated_and_bfd_has_a_configuration_of_its_own() -> None:
    configurations = Ospf(bfd=True, time_dilation=4.0).configurations(_square(), "a")
    assert configurations["ospfd"].count(" ip ospf hello-interval 4\n ip ospf dead-interval 12\n ip ospf bfd\n") == 2
    assert "transmit-interval 200\n" in configurations["bfdd"]


def test_a_transit_announces_no_island() -> None:
    topology = Topology(
        "line", (Island("a"), Island("b")), ("x",), (*both_ways("a", "x", 1, 1), *both_ways("x", "b", 1, 1))
    )
    assert "passive" in Ospf(bfd=False).configurations(topology, "a")["ospfd"]
    assert "passive" not in Ospf(bfd=False).configurations(topology, "x")["ospfd"]


@pytest.mark.parametrize("plane", ["direct", "unicast"])
def test_planes_without_routing_daemons_are_refused(plane: str) -> None:
    with pytest.raises(TestbedError, match=f"plane {plane} has no use for OSPF's ways; use --multicast pim"):
        choose_plane(plane, _square(), [[OVER_B]], make_ospf("ospf", 1.0))


def test_igp_names() -> None:
    assert make_ospf("none", 2.0) is None
    assert make_ospf("ospf", 2.0) == Ospf(bfd=True, time_dilation=2.0)
    assert make_ospf("ospf-no-bfd", 2.0) == Ospf(bfd=False, time_dilation=2.0)
