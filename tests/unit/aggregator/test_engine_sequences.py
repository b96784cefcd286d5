"""Random sequences of contributions: order, loss, duplicates and pressure never change what a sum is."""

from functools import reduce

import numpy as np
import pytest
from engine_rig import Contribution, Rig, accounted, config, summing_engines
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.engine import BYPASSED
from aggregator.engines import make_engine
from aggregator.wire.packet import Reason

ISLANDS = 9
CHUNKS = 6
VALUES = 5


def values_of(source: int, chunk: int) -> list[int]:
    """What this contributor sends for this chunk: distinct powers and large numbers, so that no two sums look alike."""
    rng = np.random.default_rng([source, chunk])
    return rng.integers(-(2**27), 2**27, VALUES).tolist()


def total_of(bitmap: int, chunk: int) -> list[int]:
    members = [source for source in range(64) if bitmap >> source & 1]
    return [sum(column) for column in zip(*(values_of(source, chunk) for source in members), strict=True)]


@st.composite
def sequences(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """(now_ns, source, chunk) in time order: a shuffled subset of all contributions, with repeats."""
    every = [(source, chunk) for source in range(ISLANDS) for chunk in range(CHUNKS)]
    sent = draw(st.permutations(every))[: draw(st.integers(0, len(every)))]
    repeats = draw(st.lists(st.sampled_from(every), max_size=20))
    mixed = draw(st.permutations([*sent, *repeats]))
    steps = draw(st.lists(st.sampled_from([0, 1, 7, 150]), min_size=len(mixed), max_size=len(mixed)))
    return [(int(now), *pair) for now, pair in zip(np.cumsum(steps), mixed, strict=True)]


@pytest.mark.parametrize("name", summing_engines())
@pytest.mark.parametrize("policy", ["bypass-new", "evict-old"])
@settings(max_examples=60, deadline=None)
@given(sequence=sequences(), slots=st.integers(1, 8), batch=st.sampled_from([1, 7, 64]))
def test_every_contribution_is_delivered_once_and_every_sum_is_exact(
    name: str, policy: str, sequence: list[tuple[int, int, int]], slots: int, batch: int
) -> None:
    engine = make_engine(name)
    # Tombstones outlive the sequence, and the index has room: what is left to go short is the pool.
    engine_config = config(
        slots=slots, values_per_chunk=VALUES, index_entries=1 << 10, collision_policy=policy, reordering_ns=10**9
    )
    rig = Rig(engine, engine_config)
    rig.announce((1 << ISLANDS) - 1)
    delivered = [0] * CHUNKS

    def deliver(chunk: int, bitmap: int) -> None:
        assert not delivered[chunk] & bitmap, "a contribution was delivered twice"
        delivered[chunk] |= bitmap

    def collect(now_ns: int) -> None:
        for result in rig.poll(now_ns):
            assert result.values == total_of(result.bitmap, result.chunk)
            deliver(result.chunk, result.bitmap)
            if result.reason is Reason.COMPLETE:
                assert delivered[result.chunk] == (1 << ISLANDS) - 1

    now_ns = 0
    for start in range(0, len(sequence), batch):
        part = sequence[start : start + batch]
        now_ns = part[-1][0]
        verdicts = rig.submit(
            *[Contribution(source, values_of(source, chunk), chunk=chunk) for _, source, chunk in part], now_ns=now_ns
        )
        assert len(verdicts) == len(part)
        for (_, source, chunk), verdict in zip(part, verdicts, strict=True):
            if verdict in BYPASSED:
                deliver(chunk, 1 << source)
        assert rig.engine.stats().slots_in_use <= slots
        collect(now_ns)
    rig.engine.flush(now_ns)
    collect(now_ns)
    sent = reduce(lambda seen, item: seen | {(item[1], item[2])}, sequence, set[tuple[int, int]]())
    assert delivered == [sum(1 << source for source, at in sent if at == chunk) for chunk in range(CHUNKS)]
    counters = rig.counters()
    assert accounted(counters) == counters.contributions == len(sequence)
    assert counters.duplicate == len(sequence) - len(sent)
    engine.close()
