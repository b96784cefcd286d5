"""How long a receiver went without a source's stream in a round, counted from the chunks that it lacks.

No extra traffic measures it: every chunk has its due time on the sender's schedule, so the chunks that never came say
when the stream was away, to within the time between two chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from agents.exchange_area import ExchangeArea, chunk_count
from agents.sending import turns_ns
from aggregator.wire.packet import frame_bytes
from testbed.run.program import Epoch


@dataclass(frozen=True)
class Outage:
    """`missing` of a source's chunks did not reach a receiver; the time from the first to the last, in emulated ns."""

    source: str
    receiver: str
    missing: int
    duration_ns: int


def find_outages(epoch: Epoch, phase: int, round_number: int, areas: Sequence[ExchangeArea]) -> list[Outage]:
    """What each island lacks of each of its clique's contributions; `areas` by island id, after the round."""
    outages = []
    frames = [_frame_sizes(values, areas[0].values_per_chunk) for values in epoch.shard_values]
    row = areas[0].row(round_number)
    for flow in epoch.plan.rounds[phase].flows:
        duration_ns = epoch.scale.emulated_ns(flow.duration_ms)
        due_ns = np.concatenate([turns_ns(frames, shard, 1, 0, duration_ns) for shard in range(len(frames))])
        between_ns = duration_ns // len(due_ns)
        bit = np.uint64(1 << epoch.island_ids[flow.source])
        for receiver in flow.receivers:
            missing = due_ns[areas[epoch.island_ids[receiver]].bitmaps[row] & bit == 0]
            if len(missing):
                span_ns = int(missing.max() - missing.min()) + between_ns
                outages.append(Outage(flow.source, receiver, len(missing), span_ns))
    return outages


def _frame_sizes(values: int, values_per_chunk: int) -> list[int]:
    ends = [min(end, values) for end in accumulate([values_per_chunk] * chunk_count(values, values_per_chunk))]
    return [frame_bytes(end - first) for first, end in zip([0, *ends], ends, strict=False)]
