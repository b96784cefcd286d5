"""How a payload of on-wire bytes is cut into frames, and what that costs beside the planned time."""

from dataclasses import dataclass
from itertools import pairwise

from aggregator.wire.packet import FRAME_OVERHEAD_BYTES, VALUE_BYTES, frame_bytes, values_per_frame
from scheduler.plan import RoundPlan
from scheduler.topology import Topology
from testbed.errors import TestbedError
from testbed.links.interface import MTU_BYTES
from testbed.run.arrivals import path_delays_ms
from testbed.scale import Scale


@dataclass(frozen=True)
class Framing:
    """`values` 32-bit values in `chunks` frames of together `wire_bytes` on-wire bytes."""

    values: int
    values_per_chunk: int
    chunks: int
    wire_bytes: int

    @property
    def full_frame_bytes(self) -> int:
        return frame_bytes(self.values_per_chunk)


def frame_payload(payload_bytes: int) -> Framing:
    """Cut `payload_bytes` of on-wire bytes into full frames and a shorter last one.

    The frames add up to the payload, but for a remainder of less than one frame with a single value. Raises
    TestbedError for a payload that is smaller than that.
    """
    values_per_chunk = values_per_frame(MTU_BYTES)
    full_frames, rest = divmod(payload_bytes, frame_bytes(values_per_chunk))
    last_values = max(rest - FRAME_OVERHEAD_BYTES, 0) // VALUE_BYTES
    values = full_frames * values_per_chunk + last_values
    if values == 0:
        raise TestbedError(
            f"payload: {payload_bytes} bytes are left of it at this rate scale, less than one frame of "
            f"{frame_bytes(1)}; use a larger --payload-gb or --rate-scale"
        )
    chunks = full_frames + (last_values > 0)
    return Framing(values, values_per_chunk, chunks, chunks * FRAME_OVERHEAD_BYTES + values * VALUE_BYTES)


def shard_values(framing: Framing, hosts: int) -> list[int]:
    """The values of each host's shard: whole chunks, as evenly as can be; the last shard has the last chunk.

    Raises TestbedError if there are fewer chunks than hosts.
    """
    if framing.chunks < hosts:
        raise TestbedError(
            f"--hosts-per-island {hosts}: the payload has {framing.chunks} frames, fewer than hosts; "
            "use a larger --payload-gb or --rate-scale"
        )
    bounds = [framing.chunks * host // hosts * framing.values_per_chunk for host in range(hosts)] + [framing.values]
    return [end - first for first, end in pairwise(bounds)]


def packetisation_ms(planned: RoundPlan, topology: Topology, scale: Scale, frame: int) -> float:
    """What frames of `frame` bytes and the access links add to a round's planned time, in undilated ms.

    The plan counts a continuous stream from edge to edge; a packet is received whole before it goes on, so it costs
    its transmission time once per hop, both access links included, and their delays. The maximum over all flows and
    receivers of planned last byte plus these, less the planned round time.
    """
    islands = {island.id: island for island in topology.islands}
    rates_gbps = {(link.source, link.target): link.rate_gbps for link in topology.links}

    def transmission_ms(rate_gbps: float) -> float:
        return frame * 8 / scale.rate_bps(rate_gbps) * 1e3 / scale.time_dilation

    latest_ms = 0.0
    for flow in planned.flows:
        source = islands[flow.source]
        delay_ms = path_delays_ms(flow, topology)
        extra_ms = {flow.source: source.access_one_way_delay_ms + transmission_ms(source.access_up_gbps)}
        for parent, child in flow.links:
            extra_ms[child] = extra_ms[parent] + transmission_ms(rates_gbps[parent, child])
        for name in flow.receivers:
            receiver = islands[name]
            access_ms = receiver.access_one_way_delay_ms + transmission_ms(receiver.access_down_gbps)
            last_ms = flow.offset_ms + delay_ms[name] + flow.duration_ms + extra_ms[name] + access_ms
            latest_ms = max(latest_ms, last_ms)
    return max(latest_ms - planned.round_time_ms, 0.0)
