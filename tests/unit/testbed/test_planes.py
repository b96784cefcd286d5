"""Which plane a run gets, and what each refuses before anything is built."""

import os
from pathlib import Path

import pytest

from scheduler.topology import Island, Topology, both_ways
from testbed.errors import TestbedError
from testbed.multicast import frr, limits
from testbed.multicast.frr import pim_configuration
from testbed.multicast.groups import Tree
from testbed.multicast.pim import PimPlane, two_ways_back
from testbed.multicast.planes import choose_plane
from testbed.multicast.unicast import UnicastPlane
from testbed.multicast.ways import ways_back

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a network namespace")
OVER_B = Tree("232.1.0.1", "a", ("c",), (("a", "b"), ("b", "c")), "10.1.0.10")
OVER_D = Tree("232.1.0.2", "a", ("c",), (("a", "d"), ("d", "c")), "10.1.0.10")


def _square() -> Topology:
    links = tuple(link for a, b in ("ab", "bc", "cd", "da") for link in both_ways(a, b, 1.0, 100.0))
    return Topology("square", tuple(Island(name) for name in "abcd"), (), links)


def _with_frr(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    for daemon in ("zebra", "pimd"):
        (directory / daemon).touch(mode=0o755)
    monkeypatch.setattr(frr, "DAEMONS", directory)


def test_pim_refuses_one_address_with_two_ways_back() -> None:
    refusal = two_ways_back([OVER_B, OVER_D])
    assert refusal is not None
    assert "two trees of island a reach router c from b and d" in refusal
    assert "--multicast direct" in refusal


@NEEDS_ROOT
def test_auto_takes_pim_where_it_can_and_direct_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _with_frr(monkeypatch, tmp_path)
    assert choose_plane("auto", _square(), [[OVER_B]]).name == "pim"
    assert choose_plane("auto", _square(), [[OVER_B], [OVER_B, OVER_D]]).name == "direct"
    monkeypatch.setattr(frr, "DAEMONS", tmp_path / "nothing")
    assert choose_plane("auto", _square(), [[OVER_B]]).name == "direct"


def test_pim_without_frr_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(frr, "DAEMONS", tmp_path)
    with pytest.raises(
        TestbedError, match="multicast plane pim: FRR's zebra is not installed; install the package frr"
    ):
        choose_plane("pim", _square(), [[OVER_B]])


def test_pim_leaves_one_interface_to_pimd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _with_frr(monkeypatch, tmp_path)
    arms = [f"a{number}" for number in range(31)]
    links = tuple(link for arm in arms for link in both_ways("hub", arm, 1.0, 100.0))
    star = Topology("star", tuple(Island(name) for name in ("hub", *arms)), (), links)
    refusal = PimPlane().refusal(star, [])
    assert refusal is not None
    assert "router hub has 32 multicast interfaces, but the kernel has room for 31" in refusal


def test_more_memberships_than_a_socket_has_memory_for_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory = tmp_path / "optmem_max"
    memory.write_text("1200\n", encoding="ascii")
    monkeypatch.setattr(limits, "_OPTION_MEMORY", memory)
    trees = [Tree(f"232.1.0.{number}", "a", ("c",), (), "10.1.0.10") for number in range(1, 12)]
    assert limits.too_many_memberships(trees[:10]) is None
    refusal = limits.too_many_memberships(trees)
    assert refusal is not None
    assert "edge c-e would join 11 trees, but a socket has room for 10" in refusal


def test_unicast_refuses_trees_that_part_on_the_way_to_one_edge() -> None:
    refusal = UnicastPlane().refusal(_square(), [OVER_B, OVER_D])
    assert refusal is not None
    assert "from router a, trees reach c over b and d" in refusal
    assert UnicastPlane().refusal(_square(), [OVER_B]) is None


def test_ways_back_follow_the_tree_against_its_direction() -> None:
    assert ways_back([OVER_B]) == {("b", "10.1.0.10"): "a", ("c", "10.1.0.10"): "b"}


def test_a_transit_router_speaks_pim_and_no_igmp() -> None:
    router = pim_configuration("x", ["c-a", "c-b"], None)
    assert router.count(" ip pim\n") == 2
    assert "igmp" not in router
    assert "ip igmp version 3" in pim_configuration("a", ["c-x"], "e0")
