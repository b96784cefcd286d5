"""Times of ring all-reduce, against the reference's and by hand."""

import pytest

from scheduler.errors import PlanError
from scheduler.ring import best_ring
from testbed.topology.load import load_topology
from tests.unit.scheduler.shapes import CHAIN, PAYLOAD_GB, TRIANGLE, topology


def test_nine_city_has_the_reference_times() -> None:
    ring = best_ring(load_topology("nine-city"), 1.692)
    assert ring.pipelined_ms == pytest.approx(802.6, abs=0.05)
    assert ring.synchronous_ms == pytest.approx(1712.6, abs=0.05)
    assert sorted(ring.islands) == sorted(load_topology("nine-city").island_ids)


def test_three_islands_by_hand() -> None:
    """Four steps of a third of 100 ms each; the longest way around is a-b-c-a-… beginning at the link of 45 ms."""
    ring = best_ring(TRIANGLE, PAYLOAD_GB)
    assert ring.pipelined_ms == pytest.approx((45 + 40 + 10 + 45) + 4 * 100 / 3)
    assert ring.synchronous_ms == pytest.approx(4 * (45 + 100 / 3))


def test_the_slowest_link_sets_the_pace_and_the_better_ring_is_taken() -> None:
    square = topology(("a", "b", 1), ("b", "c", 1), ("c", "d", 1), ("d", "a", 1), ("a", "c", 1, 10), ("b", "d", 1))
    ring = best_ring(square, PAYLOAD_GB)
    assert ring.islands in (("a", "b", "c", "d"), ("a", "d", "c", "b"))
    assert ring.pipelined_ms == pytest.approx(6 + 6 * 25)


def test_without_a_ring_there_is_no_time() -> None:
    with pytest.raises(PlanError, match="no ring of core links"):
        best_ring(CHAIN, PAYLOAD_GB)
    many = topology(*((f"{k:02}", f"{(k + 1) % 13:02}", 1) for k in range(13)))
    with pytest.raises(PlanError, match="13 islands"):
        best_ring(many, PAYLOAD_GB)
