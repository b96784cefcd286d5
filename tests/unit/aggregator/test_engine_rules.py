"""Every engine keeps every rule of docs/aggregator.md; a test is named after its rule."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from engine_rig import (
    DEADLINE_NS,
    EPOCH,
    JOB,
    REORDERING_NS,
    Contribution,
    Result,
    Rig,
    accounted,
    config,
    summing_engines,
)

from aggregator.edge import index_entries
from aggregator.engine import Engine, EngineConfig, EngineError, Verdict, index_set
from aggregator.engines import make_engine
from aggregator.wire.packet import Reason

C = Contribution
ADDED, DUPLICATE = Verdict.ADDED, Verdict.DUPLICATE
MakeRig = Callable[..., Rig]


@pytest.fixture(params=summing_engines())
def make_rig(request: pytest.FixtureRequest) -> Iterator[MakeRig]:
    engines: list[Engine] = []

    def make(engine_config: EngineConfig | None = None, **fields: object) -> Rig:
        engines.append(make_engine(request.param))
        return Rig(engines[-1], engine_config or config(**fields))  # type: ignore[arg-type]

    yield make
    for engine in engines:
        engine.close()


def test_key_is_complete_when_every_expected_contributor_is_in(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(0b1011)
    assert rig.submit(C(0, [1, 2, 3]), C(3, [10, 20, 30])) == [ADDED, ADDED]
    assert rig.poll() == []
    assert rig.submit(C(1, [100, 200, -300])) == [ADDED]
    assert rig.poll() == [Result(0, Reason.COMPLETE, 0b1011, [111, 222, -267])]
    assert rig.poll(now_ns=10 * DEADLINE_NS) == []
    assert rig.engine.stats().slots_in_use == 0


@pytest.mark.parametrize("part", ["job", "epoch", "round", "shard", "chunk"])
def test_key_is_job_epoch_round_shard_chunk(make_rig: MakeRig, part: str) -> None:
    rig = make_rig()
    rig.announce(0b11)
    rig.announce(0b11, round_number=1)
    rig.announce(0b11, epoch=EPOCH + 1)
    rig.engine.set_clique(JOB + 1, EPOCH, 0, 0b11, DEADLINE_NS)
    base = {"job": JOB, "epoch": EPOCH, "round": 0, "shard": 0, "chunk": 0}
    other = {**base, part: base[part] + 1}
    rig.submit(C(0, [1, 1, 1], **base), C(1, [2, 2, 2], **other))
    assert rig.poll() == []
    rig.submit(C(1, [4, 4, 4], **base), C(0, [8, 8, 8], **other))
    assert rig.poll() == [
        Result(reason=Reason.COMPLETE, bitmap=0b11, values=[5, 5, 5], **base),
        Result(reason=Reason.COMPLETE, bitmap=0b11, values=[10, 10, 10], **other),
    ]


def test_bitmap_is_tested_before_data_a_duplicate_never_adds(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(0b11)
    assert rig.submit(C(0, [1, 2, 3]), C(0, [9, 9, 9])) == [ADDED, DUPLICATE]
    rig.submit(C(1, [10, 20, 30]))
    assert rig.poll() == [Result(0, Reason.COMPLETE, 0b11, [11, 22, 33])]
    assert rig.counters().duplicate == 1


def test_short_chunk_sums_only_its_values(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(0b11)
    rig.submit(C(0, [7, 7, 7], chunk=1), C(1, [7, 7, 7], chunk=1))
    rig.poll()
    rig.submit(C(0, [1]), C(1, [2]))
    rig.out_payloads[:] = 99
    assert rig.poll() == [Result(0, Reason.COMPLETE, 0b11, [3])]


def test_length_of_a_key_is_set_by_its_first_contribution(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(0b111)
    assert rig.submit(C(0, [1, 1]), C(1, [1]), C(2, [1, 1, 1]), C(0, [], chunk=1), C(0, [0] * 4, chunk=1)) == [
        ADDED,
        *[Verdict.REFUSED_LENGTH] * 4,
    ]
    assert rig.counters().refused_length == 4
    assert rig.submit(C(1, [1, 5]), C(2, [1, 6])) == [ADDED, ADDED]
    assert rig.poll() == [Result(0, Reason.COMPLETE, 0b111, [3, 12])]


def test_sum_is_modulo_two_to_the_32(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(0b11)
    rig.submit(C(0, [2**31 - 1, -(2**31), -1]), C(1, [1, -1, 1]))
    assert rig.poll()[0].values == [-(2**31), 2**31 - 1, 0]


@pytest.mark.parametrize("length", [1, 15, 17, 255, 256, 257, 511, 512, 513, 600])
def test_sum_has_every_value_and_no_more(make_rig: MakeRig, length: int) -> None:
    rig = make_rig(values_per_chunk=600)
    rig.announce(0b111)
    values = np.random.default_rng(length).integers(-(2**31), 2**31, (3, length), np.int32)
    rig.submit(*[C(source, values[source].tolist()) for source in range(3)])
    rig.out_payloads[:] = 99
    assert rig.poll()[0].values == values.sum(axis=0, dtype=np.int32).tolist()
    assert (rig.out_payloads[0, length:] == 99).all()


def test_sum_in_f32_is_that_of_ieee_754_in_the_order_of_arrival(make_rig: MakeRig) -> None:
    rig = make_rig(number_format=1)
    rig.announce(0b111)
    large, one, less = (np.full(3, number, np.float32).view(np.int32).tolist() for number in (1e8, 1, -1e8))
    rig.submit(C(0, large), C(1, one), C(2, less))  # the 1 is lost in 1e8
    rig.submit(C(0, large, chunk=1), C(2, less, chunk=1), C(1, one, chunk=1))
    sums = [np.array(result.values, np.int32).view(np.float32).tolist() for result in rig.poll()]
    assert sums == [[0, 0, 0], [1, 1, 1]]


def test_highest_contributor_is_63(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(1 << 63 | 1)
    rig.submit(C(0, [1, 1, 1]))
    assert rig.submit(C(64, [1, 1, 1]), C(255, [1, 1, 1])) == [Verdict.REFUSED_SOURCE] * 2
    rig.submit(C(63, [1, 1, 1]))
    assert rig.poll() == [Result(0, Reason.COMPLETE, 1 << 63 | 1, [2, 2, 2])]


def test_only_announced_rounds_are_admitted(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(0b11)
    stale = [C(0, [1, 1, 1], job=JOB + 1), C(0, [1, 1, 1], epoch=EPOCH - 1), C(0, [1, 1, 1], round=1)]
    assert rig.submit(*stale) == [Verdict.REFUSED_EPOCH] * 3
    assert rig.counters().refused_epoch == 3
    assert rig.engine.stats().slots_in_use == 0


def test_only_expected_contributors_are_admitted(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(0b101)
    assert rig.submit(C(1, [1, 1, 1])) == [Verdict.REFUSED_SOURCE]
    assert rig.counters().refused_source == 1
    assert rig.engine.stats().slots_in_use == 0


def test_timeout_counts_from_the_first_arrival(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(0b111)
    rig.submit(C(0, [1, 2, 3]), now_ns=100)
    rig.submit(C(1, [1, 2, 3]), now_ns=900)
    deadline = 100 + DEADLINE_NS
    assert rig.engine.next_deadline_ns() == deadline
    assert rig.poll(now_ns=deadline - 1) == []
    assert rig.poll(now_ns=deadline) == [Result(0, Reason.TIMEOUT, 0b011, [2, 4, 6])]
    assert rig.counters().timeout == 1
    assert rig.engine.next_deadline_ns() is None


def test_deadline_acts_in_poll_and_not_before(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(0b11)
    rig.submit(C(0, [1, 1, 1]), now_ns=0)
    rig.submit(C(1, [1, 1, 1]), now_ns=5 * DEADLINE_NS)
    assert rig.poll(now_ns=5 * DEADLINE_NS)[0].reason == Reason.COMPLETE


def test_completions_come_in_submit_order_then_deadlines_in_deadline_slot_order(make_rig: MakeRig) -> None:
    rig = make_rig(slots=8)
    rig.announce(0b11, deadline_ns=1000)
    rig.announce(0b11, round_number=1, deadline_ns=400)
    for chunk in (5, 6, 7):
        rig.submit(C(0, [1, 1, 1], chunk=chunk), now_ns=0)
    rig.submit(C(0, [1, 1, 1], chunk=8, round=1), now_ns=0)
    rig.submit(C(1, [1, 1, 1], chunk=6), now_ns=10)
    rig.submit(C(0, [1, 1, 1], chunk=9), now_ns=10)  # takes the slot that chunk 6 has left: before that of chunk 7
    rig.submit(C(0, [1, 1, 1], chunk=1, round=1), C(0, [1, 1, 1], chunk=2), now_ns=610)
    rig.submit(C(0, [1, 1, 1], chunk=4), C(1, [1, 1, 1], chunk=4), now_ns=620)
    order = [(result.round, result.chunk) for result in rig.poll(now_ns=5000)]
    assert order == [(0, 6), (0, 4), (1, 8), (0, 5), (0, 7), (0, 9), (1, 1), (0, 2)]


def test_equal_deadlines_come_in_slot_order(make_rig: MakeRig) -> None:
    rig = make_rig(slots=3)
    rig.announce(0b11)
    rig.submit(C(0, [1, 1, 1], chunk=0), C(0, [1, 1, 1], chunk=1))
    rig.submit(C(1, [1, 1, 1], chunk=0))
    rig.submit(C(0, [1, 1, 1], chunk=2))  # in slot 0 again, which the stack of free slots gives out first
    rig.poll(now_ns=0)
    assert [result.chunk for result in rig.poll(now_ns=DEADLINE_NS)] == [2, 1]


def test_poll_fills_what_it_is_given_and_goes_on(make_rig: MakeRig) -> None:
    rig = make_rig(slots=8)
    rig.announce(0b11)
    for chunk in range(7):
        rig.submit(C(0, [chunk, 0, 0], chunk=chunk))
    rig.submit(C(1, [0, 0, 0], chunk=6), C(1, [0, 0, 0], chunk=5))
    seen = [[result.chunk for result in rig.poll(now_ns=DEADLINE_NS, most=3)] for _ in range(4)]
    assert seen == [[6, 5, 0], [1, 2, 3], [4], []]


def test_tombstone_stops_late_packets_and_duplicates_from_opening_the_slot_again(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(0b111)
    rig.submit(C(0, [1, 1, 1]), now_ns=0)
    evicted = DEADLINE_NS
    rig.poll(now_ns=evicted)
    last = evicted + DEADLINE_NS + REORDERING_NS - 1
    assert rig.submit(C(0, [1, 1, 1]), C(1, [1, 1, 1]), C(1, [1, 1, 1]), now_ns=last) == [
        DUPLICATE,
        Verdict.BYPASSED_LATE,
        DUPLICATE,
    ]
    assert rig.engine.stats().slots_in_use == 0


def test_tombstone_ends_after_the_deadline_plus_the_largest_reordering(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(0b11)
    rig.submit(C(0, [1, 1, 1]), C(1, [1, 1, 1]), now_ns=0)
    assert rig.submit(C(0, [1, 1, 1]), now_ns=DEADLINE_NS + REORDERING_NS - 1) == [DUPLICATE]
    assert rig.submit(C(0, [1, 1, 1]), now_ns=DEADLINE_NS + REORDERING_NS) == [ADDED]


@pytest.mark.parametrize(("policy", "verdict"), [("bypass", Verdict.BYPASSED_LATE), ("drop", Verdict.DROPPED_LATE)])
def test_late_contributions_are_bypassed_or_dropped_never_silently(
    make_rig: MakeRig, policy: str, verdict: Verdict
) -> None:
    rig = make_rig(late_policy=policy)
    rig.announce(0b11)
    rig.submit(C(0, [1, 1, 1]))
    rig.poll(now_ns=DEADLINE_NS)
    assert rig.submit(C(1, [1, 1, 1]), now_ns=DEADLINE_NS) == [verdict]
    assert rig.counters().late == 1
    assert rig.poll(now_ns=9 * DEADLINE_NS) == []


def test_pool_of_100_slots_with_101_keys_has_one_bypass(make_rig: MakeRig) -> None:
    # An index without pressure: only the pool can be short.
    rig = make_rig(slots=100, index_entries=1 << 14)
    rig.announce(0b111)
    verdicts = [rig.submit(C(0, [1, 1, 1], chunk=chunk))[0] for chunk in range(101)]
    assert verdicts == [ADDED] * 100 + [Verdict.BYPASSED_COLLISION]
    stats = rig.engine.stats()
    assert (stats.high_water_slots, stats.slots_in_use) == (100, 100)
    assert (stats.counters.bypassed_pool, stats.counters.bypassed_index) == (1, 0)


def test_newcomer_bypasses_the_empty_pool_and_the_occupant_stays(make_rig: MakeRig) -> None:
    rig = make_rig(slots=1)
    rig.announce(0b111)
    rig.submit(C(0, [1, 1, 1], chunk=0))
    assert rig.submit(C(0, [5, 5, 5], chunk=1)) == [Verdict.BYPASSED_COLLISION]
    rig.submit(C(1, [1, 1, 1], chunk=0), C(2, [1, 1, 1], chunk=0))
    assert rig.poll() == [Result(0, Reason.COMPLETE, 0b111, [3, 3, 3])]


def test_bypassed_contribution_is_remembered_and_the_rest_of_its_key_is_summed(make_rig: MakeRig) -> None:
    rig = make_rig(slots=1)
    rig.announce(0b111)
    rig.submit(C(0, [1, 1, 1], chunk=0), C(0, [5, 5, 5], chunk=1), C(1, [1, 1, 1], chunk=0), C(2, [1, 1, 1], chunk=0))
    rig.poll()
    assert rig.submit(C(0, [5, 5, 5], chunk=1), C(1, [6, 6, 6], chunk=1), C(2, [7, 7, 7], chunk=1)) == [
        DUPLICATE,
        ADDED,
        ADDED,
    ]
    assert rig.poll() == [Result(1, Reason.COMPLETE, 0b110, [13, 13, 13])]


def test_contribution_that_completes_its_key_needs_no_slot(make_rig: MakeRig) -> None:
    rig = make_rig(slots=1)
    rig.announce(0b11)
    rig.announce(0b100, round_number=1)
    rig.submit(C(0, [1, 1, 1], chunk=0))
    assert rig.submit(C(2, [8, 9, 10], chunk=3, round=1)) == [ADDED]
    assert rig.poll() == [Result(3, Reason.COMPLETE, 0b100, [8, 9, 10], round=1)]
    assert rig.engine.stats().high_water_slots == 1


def test_newcomer_bypasses_an_index_set_without_a_free_way(make_rig: MakeRig) -> None:
    rig = make_rig(slots=64, index_entries=256, hash_key=5)
    rig.announce(0b11)
    sets = 256 // 16
    chunks = [chunk for chunk in range(2000) if index_set(5, (JOB, EPOCH, 0, 0, chunk), sets) == 3][:18]
    verdicts = [rig.submit(C(0, [1, 1, 1], chunk=chunk))[0] for chunk in chunks]
    assert verdicts == [ADDED] * 16 + [Verdict.BYPASSED_COLLISION] * 2
    assert rig.counters().bypassed_index == 2
    assert rig.engine.stats().slots_in_use == 16


def test_newcomer_that_finds_no_way_is_not_remembered(make_rig: MakeRig) -> None:
    rig = make_rig(slots=1, index_entries=16)
    rig.announce(0b1)
    rig.submit(*[C(0, [1, 1, 1], chunk=chunk) for chunk in range(16)])
    rig.poll()
    end = DEADLINE_NS + REORDERING_NS
    assert rig.submit(C(0, [1, 1, 1], chunk=16), now_ns=end - 1) == [Verdict.BYPASSED_COLLISION]
    assert rig.submit(C(0, [1, 1, 1], chunk=16), now_ns=end - 1) == [Verdict.BYPASSED_COLLISION], "no duplicate"
    assert rig.submit(C(0, [1, 1, 1], chunk=16), now_ns=end) == [ADDED]
    assert (rig.counters().bypassed_index, rig.counters().duplicate) == (2, 0)


def test_newcomer_that_finds_no_slot_is_remembered_for_deadline_and_reordering(make_rig: MakeRig) -> None:
    rig = make_rig(slots=1)
    rig.announce(0b111)
    rig.submit(C(0, [1, 1, 1], chunk=0), C(0, [5, 5, 5], chunk=1))
    end = DEADLINE_NS + REORDERING_NS
    assert rig.submit(C(0, [5, 5, 5], chunk=1), now_ns=end - 1) == [DUPLICATE]
    assert rig.submit(C(0, [5, 5, 5], chunk=1), now_ns=end) == [Verdict.BYPASSED_COLLISION], "it is new again"


def test_tombstones_hold_index_ways_until_they_end(make_rig: MakeRig) -> None:
    rig = make_rig(slots=1, index_entries=16)
    rig.announce(0b1)
    assert rig.submit(*[C(0, [1, 1, 1], chunk=chunk) for chunk in range(16)]) == [ADDED] * 16
    rig.poll()
    end = DEADLINE_NS + REORDERING_NS
    assert rig.submit(C(0, [1, 1, 1], chunk=16), now_ns=end - 1) == [Verdict.BYPASSED_COLLISION]
    assert rig.submit(C(0, [1, 1, 1], chunk=16), now_ns=end) == [ADDED]


def test_evict_old_sends_the_oldest_sum_and_takes_its_slot(make_rig: MakeRig) -> None:
    rig = make_rig(slots=2, collision_policy="evict-old")
    rig.announce(0b111)
    rig.submit(C(0, [1, 1, 1], chunk=0), now_ns=0)
    rig.submit(C(0, [2, 2, 2], chunk=1), now_ns=1)
    assert rig.submit(C(0, [3, 3, 3], chunk=2), C(1, [4, 4, 4], chunk=0), now_ns=2) == [ADDED, Verdict.BYPASSED_LATE]
    assert rig.poll(now_ns=2) == [Result(0, Reason.COLLISION, 0b1, [1, 1, 1])]
    assert rig.counters().collision == 1
    assert rig.engine.stats().high_water_slots == 2


def test_evict_old_takes_the_slot_that_is_nearest_to_its_deadline(make_rig: MakeRig) -> None:
    rig = make_rig(slots=3, collision_policy="evict-old")
    rig.announce(0b111)
    rig.announce(0b111, round_number=1, deadline_ns=100)
    rig.submit(C(0, [1, 1, 1], chunk=0), now_ns=0)
    rig.submit(C(0, [2, 2, 2], chunk=1), now_ns=50)
    rig.submit(C(0, [3, 3, 3], chunk=2, round=1), now_ns=60)
    rig.submit(C(0, [4, 4, 4], chunk=3), now_ns=70)
    assert rig.poll(now_ns=70) == [Result(2, Reason.COLLISION, 0b1, [3, 3, 3], round=1)], "not the one opened first"
    rig.submit(C(0, [5, 5, 5], chunk=4), now_ns=70)
    assert [result.chunk for result in rig.poll(now_ns=70)] == [0]
    rig.submit(C(0, [6, 6, 6], chunk=5), now_ns=70)
    rig.submit(C(0, [7, 7, 7], chunk=6), now_ns=70)
    # Chunk 4 is in slot 0 and chunk 3 in slot 2; their deadlines are equal.
    assert [result.chunk for result in rig.poll(now_ns=70)] == [1, 4]


def test_source_takes_no_more_slots_than_its_share(make_rig: MakeRig) -> None:
    rig = make_rig(slots=4, slots_per_source=2)
    rig.announce(0b1011)
    assert [rig.submit(C(0, [1, 1, 1], chunk=chunk))[0] for chunk in range(3)] == [
        ADDED,
        ADDED,
        Verdict.BYPASSED_COLLISION,
    ]
    # The others still find slots, for the same key too; a slot that is given back can be taken again.
    assert rig.submit(C(1, [1, 1, 1], chunk=2), C(1, [1, 1, 1], chunk=3)) == [ADDED, ADDED]
    assert rig.submit(C(1, [1, 1, 1], chunk=0), C(3, [1, 1, 1], chunk=0)) == [ADDED, ADDED]
    assert rig.submit(C(0, [1, 1, 1], chunk=4)) == [ADDED]
    counters = rig.counters()
    assert (counters.bypassed_source, counters.bypassed_pool, counters.complete) == (1, 0, 1)


def test_share_of_a_source_holds_with_evict_old_too(make_rig: MakeRig) -> None:
    rig = make_rig(slots=4, slots_per_source=1, collision_policy="evict-old")
    rig.announce(0b11)
    assert rig.submit(C(0, [1, 1, 1], chunk=0), C(0, [1, 1, 1], chunk=1)) == [ADDED, Verdict.BYPASSED_COLLISION]
    assert rig.counters().collision == 0


def test_longest_wait_of_a_complete_key_is_counted_by_round(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(0b11, round_number=0)
    rig.announce(0b11, round_number=1)
    rig.submit(C(0, [1, 1, 1]), C(0, [1, 1, 1], chunk=1), now_ns=100)
    rig.submit(C(1, [1, 1, 1]), now_ns=150)
    rig.submit(C(1, [1, 1, 1], chunk=1), now_ns=420)
    rig.submit(C(0, [1, 1, 1], round=1), now_ns=500)
    rig.submit(C(1, [1, 1, 1], round=1), now_ns=510)
    assert rig.counters().longest_wait_ns == 320
    assert rig.engine.drop_clique(JOB, EPOCH, 1).longest_wait_ns == 10
    assert rig.counters().longest_wait_ns == 320


def test_back_pressure_accepts_a_prefix_and_drops_nothing(make_rig: MakeRig) -> None:
    rig = make_rig(max_batch=2)
    rig.announce(0b1)
    batch = [C(0, [chunk, 0, 0], chunk=chunk) for chunk in range(5)]
    assert len(rig.submit(*batch)) == 2
    assert [result.chunk for result in rig.poll()] == [0, 1]
    assert len(rig.submit(*batch[2:])) == 2
    assert [result.chunk for result in rig.poll()] == [2, 3]
    assert len(rig.submit(*batch[4:])) == 1
    assert rig.counters().contributions == 5


def test_older_epoch_and_round_neither_match_nor_evict_newer_ones(make_rig: MakeRig) -> None:
    rig = make_rig(slots=2)
    rig.announce(0b11)
    rig.announce(0b11, epoch=EPOCH + 1, round_number=1)
    rig.submit(C(0, [1, 1, 1]), C(0, [2, 2, 2], epoch=EPOCH + 1, round=1))
    assert rig.submit(C(1, [2, 2, 2], epoch=EPOCH, round=1)) == [Verdict.REFUSED_EPOCH]
    rig.submit(C(1, [20, 20, 20], epoch=EPOCH + 1, round=1), C(1, [10, 10, 10]))
    assert [(result.epoch, result.values[0]) for result in rig.poll()] == [(EPOCH + 1, 22), (EPOCH, 11)]


def test_dropped_round_is_forgotten_counted_and_refused(make_rig: MakeRig) -> None:
    rig = make_rig(slots=2, index_entries=16)
    rig.announce(0b11)
    rig.announce(0b11, round_number=1)
    rig.submit(C(0, [1, 1, 1], chunk=0), C(0, [1, 1, 1], chunk=1), C(1, [1, 1, 1], chunk=1), C(1, [1, 1, 1], chunk=1))
    rig.submit(C(0, [3, 3, 3], round=1))
    counts = rig.engine.drop_clique(JOB, EPOCH, 0)
    assert (counts.added, counts.complete, counts.duplicate, counts.abandoned) == (3, 1, 1, 1)
    assert rig.engine.stats().slots_in_use == 1
    assert rig.counters().added == 4
    assert [result.round for result in rig.poll()] == [0], "a result that waited still comes"
    assert rig.submit(C(1, [1, 1, 1], chunk=0)) == [Verdict.REFUSED_EPOCH]
    rig.announce(0b11)
    assert rig.submit(C(1, [1, 1, 1], chunk=1)) == [ADDED], "the tombstone went with the round"


def test_round_is_announced_once_and_dropped_once(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(0b11)
    with pytest.raises(EngineError, match="announced already"):
        rig.announce(0b11)
    rig.engine.drop_clique(JOB, EPOCH, 0)
    with pytest.raises(EngineError, match="not announced"):
        rig.engine.drop_clique(JOB, EPOCH, 0)


@pytest.mark.parametrize("expected", [0, -1, 1 << 64])
def test_expected_is_a_bitmap_of_1_to_64_contributors(make_rig: MakeRig, expected: int) -> None:
    with pytest.raises(EngineError, match="expected"):
        make_rig().announce(expected)


def test_flush_ends_open_slots_now(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(0b11)
    rig.submit(C(0, [1, 1, 1], chunk=0), C(0, [1, 1, 1], chunk=1))
    rig.engine.flush(now_ns=10)
    assert rig.engine.next_deadline_ns() == 10
    assert [(result.chunk, result.reason) for result in rig.poll(now_ns=10)] == [
        (0, Reason.TIMEOUT),
        (1, Reason.TIMEOUT),
    ]


def test_flush_leaves_earlier_deadlines_as_they_are(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(0b11)
    rig.announce(0b11, round_number=1, deadline_ns=10)
    rig.submit(C(0, [1, 1, 1], chunk=0), C(0, [1, 1, 1], chunk=1, round=1))
    rig.engine.flush(now_ns=20)
    assert rig.engine.next_deadline_ns() == 10
    assert [result.chunk for result in rig.poll(now_ns=20)] == [1, 0]


def test_high_water_can_be_counted_anew(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(0b11)
    rig.submit(*[C(0, [1, 1, 1], chunk=chunk) for chunk in range(3)])
    rig.submit(C(1, [1, 1, 1], chunk=0), C(1, [1, 1, 1], chunk=1))
    assert rig.engine.stats().high_water_slots == 3
    assert (rig.engine.take_high_water(), rig.engine.take_high_water()) == (3, 1)
    assert rig.engine.stats().high_water_slots == 1


def test_reset_forgets_everything(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.announce(0b1)
    rig.submit(C(0, [1, 1, 1]))
    rig.engine.reset()
    assert rig.poll(now_ns=10 * DEADLINE_NS) == []
    assert rig.submit(C(0, [1, 1, 1])) == [Verdict.REFUSED_EPOCH]
    assert rig.counters().contributions == 1


def test_every_contribution_is_accounted_for(make_rig: MakeRig) -> None:
    rig = make_rig(slots=4, max_batch=64)
    rig.announce(0b111)
    rng = np.random.default_rng(3)
    for now_ns in range(0, 20_000, 20):
        rig.submit(
            *[
                C(int(source), [1] * int(length), chunk=int(chunk), round=int(round_number))
                for source, length, chunk, round_number in zip(
                    rng.integers(0, 4, 8),
                    rng.choice([3, 3, 3, 2], 8),
                    rng.integers(0, 40, 8),
                    rng.choice([0, 0, 0, 1], 8),
                    strict=True,
                )
            ],
            now_ns=now_ns,
        )
        rig.poll(now_ns=now_ns)
    counters = rig.counters()
    assert counters.contributions == 8000
    assert accounted(counters) == 8000
    assert min(counters.timeout, counters.complete, counters.late, counters.bypassed_pool, counters.duplicate) > 0


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"slots": 0, "index_entries": 16}, "slots"),
        ({"values_per_chunk": 0}, "values_per_chunk"),
        ({"index_entries": 8}, "index_entries"),
        ({"slots": 8, "index_entries": 16}, "index_entries"),
        ({"index_entries": 48}, "index_entries"),
        ({"hash_key": -1}, "hash_key"),
        ({"reordering_ns": -1}, "reordering_ns"),
        ({"max_batch": 0}, "max_batch"),
        ({"slots_per_source": 0}, "slots_per_source"),
        ({"late_policy": "keep"}, "late_policy"),
        ({"collision_policy": "evict-new"}, "collision_policy"),
        ({"number_format": 9}, "number_format"),
    ],
)
def test_open_refuses_what_the_engine_cannot_do(make_rig: MakeRig, fields: dict[str, object], named: str) -> None:
    with pytest.raises(EngineError, match=named):
        make_rig(**fields)


def test_unknown_engine_names_the_known() -> None:
    with pytest.raises(EngineError, match=r"engine 'fpga9' is unknown; there are: .*numpy"):
        make_engine("fpga9")


def test_package_that_cannot_be_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "mine-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: mine\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[testbed.engines]\ngone = no_such_module:Engine\nless = json:Engine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EngineError, match=r"engine gone: its package cannot be loaded: .*no_such_module"):
        make_engine("gone")
    with pytest.raises(EngineError, match=r"engine less: its package cannot be loaded: .*'Engine'"):
        make_engine("less")


def test_index_hash_is_fixed_and_spreads_neighbouring_chunks() -> None:
    assert [index_set(1, (2, 3, 4, 5, chunk), 1 << 20) for chunk in range(3)] == [796132, 302281, 721264]
    taken = np.bincount([index_set(99, (1, 0, 7, shard, chunk), 256) for shard in range(4) for chunk in range(256)])
    assert taken.max() <= 16, "1024 keys in 256 sets of 16 ways find room"


def test_index_of_an_edge_is_four_times_the_larger_of_its_slots_and_the_keys_of_four_rounds() -> None:
    assert index_entries(slots=1, keys_per_round=1) == 16
    assert index_entries(slots=1024, keys_per_round=1) == 4096
    assert index_entries(slots=1025, keys_per_round=1) == 8192, "a power of two"
    assert index_entries(slots=1, keys_per_round=1024) == 16384
    assert index_entries(slots=4096, keys_per_round=1024) == 16384
