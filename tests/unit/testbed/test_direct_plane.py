"""The plane `direct` says no before anything is built, in one line with the way out."""

import os

import pytest

from scheduler.topology import CoreLink, Island, Topology
from testbed.errors import TestbedError
from testbed.multicast import direct
from testbed.multicast.direct import DirectPlane
from testbed.multicast.planes import choose_plane

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a network namespace")


def _star(arms: int) -> Topology:
    islands = (Island("hub"), *(Island(f"a{number}") for number in range(arms)))
    links = [CoreLink("hub", island.id, 1, 100) for island in islands[1:]]
    links += [CoreLink(island.id, "hub", 1, 100) for island in islands[1:]]
    return Topology("star", islands, (), tuple(links))


@NEEDS_ROOT
def test_kernel_that_routes_multicast_is_taken() -> None:
    assert DirectPlane().refusal(_star(3), []) is None


@NEEDS_ROOT
def test_kernel_without_multicast_routing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # An option that no kernel has stands for MRT_INIT on a kernel without it.
    monkeypatch.setattr(direct, "_MRT_INIT", 199)
    with pytest.raises(TestbedError, match=r"does not route multicast .*CONFIG_IP_MROUTE"):
        choose_plane("direct", _star(3), [[]])


def test_router_with_more_links_than_the_kernel_has_room_for_is_named() -> None:
    refusal = DirectPlane().refusal(_star(32), [])
    assert refusal is not None
    assert "router hub has 33 multicast interfaces" in refusal


def test_unknown_plane_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TestbedError, match="no such plane; there are auto, direct, pim"):
        choose_plane("pigeon", _star(3), [[]])
