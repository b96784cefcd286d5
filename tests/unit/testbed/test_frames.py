"""Cutting the payload into frames, and the planned cost of doing so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.wire.packet import FRAME_OVERHEAD_BYTES, frame_bytes
from scheduler.plan import Flow, RoundPlan
from scheduler.topology import CoreLink, Island, Topology
from testbed.errors import TestbedError
from testbed.run.frames import frame_payload, packetisation_ms
from testbed.scale import Scale


def test_reference_payload_is_carried_to_the_byte() -> None:
    framing = frame_payload(1_692_000)
    assert framing.chunks == 188
    assert framing.full_frame_bytes == 9014
    assert framing.values == 187 * 2227 + 1569
    assert framing.wire_bytes == 1_692_000 - (1_692_000 - 187 * 9014 - FRAME_OVERHEAD_BYTES) % 4


@given(st.integers(min_value=frame_bytes(1), max_value=10**9))
def test_frames_add_up_to_the_payload_but_for_less_than_a_frame_of_one_value(payload: int) -> None:
    framing = frame_payload(payload)
    last_values = framing.values - (framing.chunks - 1) * framing.values_per_chunk
    assert 0 < last_values <= framing.values_per_chunk
    full_bytes = (framing.chunks - 1) * framing.full_frame_bytes
    assert framing.wire_bytes == full_bytes + frame_bytes(last_values)
    assert 0 <= payload - framing.wire_bytes < frame_bytes(1)


def test_payload_below_one_frame_is_refused() -> None:
    with pytest.raises(TestbedError, match="less than one frame"):
        frame_payload(frame_bytes(1) - 1)


@pytest.mark.parametrize("time_dilation", [1.0, 10.0])
def test_packetisation_is_one_frame_per_hop_and_the_access_delays(time_dilation: float) -> None:
    islands = (Island("a", access_one_way_delay_ms=0.5), Island("b", access_down_gbps=50, access_one_way_delay_ms=0.25))
    links = tuple(
        CoreLink(source, target, 10, rate) for source, target, rate in [("a", "t", 100), ("t", "b", 25), ("b", "a", 25)]
    )
    topology = Topology("chain", islands, ("t",), links)
    flow = Flow("a", ("b",), (("a", "t"), ("t", "b")), offset_ms=5, duration_ms=80, rate_gbps=25)
    planned = RoundPlan((("a", "b"),), 105.0, (flow,), {}, ())
    frame_ms = 9014 * 8 / 1e8 * 1e3  # at 100 Gbit/s scaled to 100 Mbit/s
    expected_ms = 0.5 + frame_ms + frame_ms + 4 * frame_ms + 0.25 + 2 * frame_ms
    scale = Scale(1e-3, time_dilation)
    assert packetisation_ms(planned, topology, scale, 9014) == pytest.approx(expected_ms, rel=1e-6)
