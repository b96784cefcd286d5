"""Where frames can be captured, and how one says where."""

import pytest

from testbed.capture.points import capture_points, choose_points
from testbed.errors import TestbedError
from testbed.network.emulated import emulated_links
from testbed.scale import Scale
from testbed.topology.load import load_topology

TOPOLOGY = load_topology("nine-city")


def points(hosts: int = 1) -> list[str]:
    return [point.name for point in capture_points(TOPOLOGY, emulated_links(TOPOLOGY, Scale(), 1, hosts), hosts)]


def chosen(*wanted: str) -> list[str]:
    there = capture_points(TOPOLOGY, emulated_links(TOPOLOGY, Scale(), 1), 1)
    return [point.name for point in choose_points(there, wanted)]


def test_every_end_of_every_link_once() -> None:
    assert len(points()) == len(set(points())) == 2 * (14 + 9 + 9)
    assert len(points(hosts=3)) == 2 * (14 + 9 + 9 + 9 * 3)


def test_ends_know_each_other() -> None:
    there = capture_points(TOPOLOGY, emulated_links(TOPOLOGY, Scale(), 1), 1)
    by_name = {point.name: point for point in there}
    for point in there:
        peer = by_name[f"{point.peer.node}:{point.peer.interface}"]
        assert (peer.peer.node, peer.peer.interface, peer.link) == (point.node, point.interface, point.link)


def test_groups() -> None:
    assert len(chosen("all")) == 64
    assert len(chosen("core")) == 28
    assert len(chosen("access")) == 18
    assert set(chosen("core", "access")) < set(chosen("all"))


def test_single_ends() -> None:
    assert chosen("nyc:nyc-lon", "nyc-e:nyc-e-nyc-h1") == ["nyc:c-lon", "nyc-e:h0"]
    assert chosen("nyc:nyc-lon", "nyc:nyc-lon") == ["nyc:c-lon"]
    assert chosen("nyc:nyc-nyc-e") == ["nyc:e0"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("wire", "NODE:LINK is, for example"),
        ("cores", "neither all, core, access nor NODE:LINK"),
        ("nyc", "nyc has nyc-chi, nyc-lax, nyc-lon, nyc-ams"),
        ("nyc:lax-tyo", "nyc has"),
        ("", "NODE:LINK"),
    ],
)
def test_names_of_nothing(name: str, hint: str) -> None:
    with pytest.raises(TestbedError, match="--capture") as refusal:
        chosen("core", name)
    assert hint in str(refusal.value)
