"""Which trees move when links fail, and how long a stream was away."""

import numpy as np
import pytest

from agents.exchange_area import ExchangeArea
from scheduler.plan import Flow
from scheduler.topology import Island, Topology, both_ways
from testbed.multicast.groups import Tree
from testbed.run.failures import moved_trees
from testbed.run.frames import Framing
from testbed.run.outages import find_outages
from testbed.run.program import make_epoch
from testbed.scale import Scale
from tests.unit.testbed.plans import make_plan

LINKS = {"ab": 1.0, "bc": 1.0, "cd": 1.0, "da": 5.0}
SQUARE = Topology(
    "square",
    tuple(Island(name) for name in "abcd"),
    (),
    tuple(link for (a, b), delay_ms in LINKS.items() for link in both_ways(a, b, delay_ms, 100.0)),
)
LONG = Tree("232.1.0.1", "a", ("b", "c", "d"), (("a", "b"), ("b", "c"), ("c", "d")), "10.1.0.10")
SHORT = Tree("232.1.0.2", "a", ("b",), (("a", "b"),), "10.1.0.10")


def _left(*down: str) -> list[tuple[str, str]]:
    return [link.id for link in SQUARE.links if {*link.id} not in [set(pair) for pair in down]]


def test_trees_that_use_a_failed_link_go_the_shortest_way_that_is_left() -> None:
    moves = moved_trees([(LONG, LONG), (SHORT, SHORT)], _left("bc"), SQUARE)
    assert list(moves) == [LONG]
    assert set(moves[LONG].links) == {("a", "b"), ("a", "d"), ("d", "c")}
    assert (moves[LONG].group, moves[LONG].address, moves[LONG].receivers) == (LONG.group, LONG.address, LONG.receivers)


def test_all_trees_of_an_address_agree_afterwards() -> None:
    other = Tree("232.1.0.3", "a", ("c",), (("a", "b"), ("b", "c")), "10.1.0.10")
    moves = moved_trees([(LONG, LONG), (other, other), (SHORT, SHORT)], _left("ab"), SQUARE)
    parents = {(child, parent) for tree in moves.values() for parent, child in tree.links}
    assert len({child for child, _ in parents}) == len(parents)
    assert set(moves) == {LONG, other, SHORT}


def test_nothing_moves_while_no_tree_is_concerned() -> None:
    assert moved_trees([(SHORT, SHORT)], _left("bc", "cd"), SQUARE) == {}


def test_receivers_that_cannot_be_reached_are_left_out_and_come_back() -> None:
    cut = moved_trees([(LONG, LONG)], _left("bc", "da"), SQUARE)[LONG]
    assert cut.receivers == ("b",)
    assert cut.links == (("a", "b"),)
    back = moved_trees([(cut, LONG)], _left(), SQUARE)[cut]
    assert set(back.receivers) == {"b", "c", "d"}


@pytest.mark.parametrize(("missing", "hosts"), [((3, 4, 6), 1), ((3, 4), 2)])
def test_an_outage_lasts_from_the_first_missing_chunk_to_the_last(missing: tuple[int, ...], hosts: int) -> None:
    framing = Framing(values=80, values_per_chunk=10, chunks=8, wire_bytes=8 * 146)
    plan = make_plan([[Flow("a", ("b",), (("a", "b"),), 0, 80, 10), Flow("b", ("a",), (("b", "a"),), 0, 80, 10)]])
    epoch = make_epoch(0, plan, SQUARE, framing, Scale(), hosts)
    areas = []
    for _ in range(4):
        shape = (1, framing.values)
        area = ExchangeArea(np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros((1, 8), np.uint64), 10)
        area.bitmaps[:] = 0b11
        areas.append(area)
    areas[1].bitmaps[0, list(missing)] = 0b10
    (outage,) = find_outages(epoch, 0, 5, areas)
    assert (outage.source, outage.receiver, outage.missing) == ("a", "b", len(missing))
    # One chunk is due every 10 ms. With two hosts chunks 3 and 4 are the last of one (due 7th) and the first of the
    # other (due 2nd).
    chunks = 4 if hosts == 1 else 6
    assert outage.duration_ns == pytest.approx(chunks * 10_000_000)
