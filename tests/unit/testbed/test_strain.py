"""Which rounds are not to be trusted, and why."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from testbed.links.interface import DirectionCounters, Lateness
from testbed.run.rounds import RoundRecord
from testbed.run.strain import Strain, Waits, strain_of, suggestion
from testbed.scale import Scale

QUIET = Lateness(((20_000, 990), (400_000, 10)))


def counters(lateness: Lateness = QUIET, dropped_other: int = 0) -> DirectionCounters:
    return DirectionCounters(
        frames_in=1000,
        bytes_in=9_000_000,
        frames_out=1000,
        bytes_out=9_000_000,
        dropped_queue=0,
        dropped_loss=0,
        dropped_other=dropped_other,
        queue_high_water_bytes=0,
        worst_lateness_ns=0,
        lateness=lateness,
    )


def strain(
    lateness: Lateness = QUIET,
    dropped_other: int = 0,
    late_us: tuple[float, float] = (50.0, 300.0),
    waits_us: tuple[float, float] = (80.0, 900.0),
    overflows: int = 0,
    wait_ms: float = 20.0,
    wait_times: int = 500,
    compute_ms: float = 350.0,
    stolen_ms: float = 0.0,
    scale: Scale | None = None,
) -> Strain:
    """A round of 500 ms on two directions, of which one carried nothing."""
    scale = scale or Scale()
    report: dict[str, Any] = {
        "send_lateness_us": {"median": 1.0, "p99": late_us[0], "max": late_us[1]},
        "receive_wait_us": {"median": 1.0, "p99": waits_us[0], "max": waits_us[1]},
    }
    nothing = counters(Lateness())
    before = {("nyc", "lon"): counters(QUIET), ("lon", "nyc"): nothing}
    passed = Lateness(tuple(sorted(_add(QUIET, lateness).items())))
    after = {("nyc", "lon"): counters(passed, dropped_other), ("lon", "nyc"): nothing}
    record = RoundRecord(
        number=0,
        epoch=0,
        phase=0,
        start_ns=0,
        completion_ns=scale.emulated_ns(500),
        planned_ns=scale.emulated_ns(490),
        packetisation_ns=0,
        done={"nyc-h1": {**report, "socket_overflows": 0}},
        retired={"nyc": {"socket_overflows": overflows}},
        training_began_ns=0,
        ended_ns=0,
        trained={"nyc": {"steps": 2, "compute_ns": scale.emulated_ns(compute_ms)}},
        ready={},
        restarts=(),
        applied={},
        exact=True,
        digests_equal=True,
        mixing=np.eye(1),
        lan_exchange_ns=0,
        before=before,
        after=after,
        routing_bytes={},
        disturbed=False,
        outages=(),
    )
    waits = {"edge-nyc": Waits(round(wait_ms * 1e6), wait_times), "edge-lon": Waits(1, 1)}
    return strain_of(record, waits, scale, scale.emulated_ns(200), round(stolen_ms * 1e6))


def _add(one: Lateness, other: Lateness) -> dict[int, int]:
    total = dict(one.buckets)
    for bound, frames in other.buckets:
        total[bound] = total.get(bound, 0) + frames
    return total


def test_quiet_round_is_trusted() -> None:
    quiet = strain()
    assert quiet.trustworthy
    assert quiet.reasons == ()
    assert (quiet.link_lateness_p99_ms, quiet.link_lateness_max_ms) == (0.02, 0.4)
    assert (quiet.worst_link, quiet.waiting_process) == ("nyc>lon", "edge-nyc")
    assert (quiet.receive_wait_p99_ms, quiet.receive_wait_max_ms, quiet.slowest_host) == (0.08, 0.9, "nyc-h1")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"dropped_other": 3}, "links dropped 3 frames"),
        ({"lateness": Lateness(((20_000, 98), (1_100_000, 2)))}, "links released frames late: p99 1.1 ms"),
        ({"lateness": Lateness(((20_000, 999), (11_000_000, 1)))}, "worst 11.0 ms (nyc>lon)"),
        ({"overflows": 2}, "2 datagrams overflowed"),
        ({"late_us": (1_200.0, 2_000.0)}, "hosts sent late: p99 1.2 ms"),
        ({"late_us": (10.0, 12_000.0)}, "worst 12.0 ms"),
        ({"waits_us": (90.0, 10_100.0)}, "hosts took results in late: p99 0.1 ms, worst 10.1 ms (nyc-h1)"),
        ({"wait_ms": 260.0}, "edge-nyc waited 260 ms for a processor, 0.5 ms each time"),
        ({"compute_ms": 410.0}, "the training of nyc really took 410 ms of the 400 ms"),
    ],
)
def test_each_sign_of_overload_is_a_reason(changes: dict[str, Any], named: str) -> None:
    found = strain(**changes)
    assert not found.trustworthy
    assert len(found.reasons) == 1
    assert named in found.reasons[0]


def test_stolen_time_explains_and_is_no_reason_by_itself() -> None:
    assert strain(stolen_ms=30.0).trustworthy
    found = strain(late_us=(10.0, 12_000.0), stolen_ms=30.0)
    assert len(found.reasons) == 2
    assert found.reasons[1] == "meanwhile a hypervisor gave 30 ms of these processors to others"


def test_results_that_wait_a_little_do_no_harm() -> None:
    assert strain(waits_us=(3_000.0, 9_900.0)).trustworthy


def test_lateness_counts_undilated() -> None:
    late = Lateness(((20_000, 98), (3_000_000, 2)))
    assert not strain(lateness=late).trustworthy
    assert strain(lateness=late, scale=Scale(time_dilation=4.0)).trustworthy


def test_many_short_waits_are_usual_and_few_long_ones_are_not() -> None:
    assert strain(wait_ms=200.0, wait_times=1000).trustworthy
    assert not strain(wait_ms=80.0, wait_times=40).trustworthy


def test_suggestion_grows_with_the_excess() -> None:
    scale = Scale(1e-3, 1.0)
    slightly = replace(strain(), link_lateness_p99_ms=1.1)
    badly = replace(strain(), link_lateness_p99_ms=3.9)
    hopelessly = replace(strain(), send_lateness_max_ms=5000.0)
    assert suggestion([slightly], scale) == "--time-dilation 2, or --rate-scale 0.0005"
    assert suggestion([slightly, badly], scale) == "--time-dilation 4, or --rate-scale 0.00025"
    assert suggestion([hopelessly], scale) == "--time-dilation 8, or --rate-scale 0.000125"
