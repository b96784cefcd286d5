"""Long runs: memory stays flat, and arrival order never shows in an integer sum (but does in a float one)."""

from pathlib import Path

import numpy as np
import pytest
from engine_rig import DEADLINE_NS, EPOCH, JOB, Contribution, Rig, config, summing_engines

from aggregator.engines import make_engine

PAGE_KB = 4


def resident_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_KB


@pytest.mark.parametrize("name", summing_engines())
def test_resident_memory_is_flat(name: str) -> None:
    """Over a million contributions; the reference, for which they take long, over a tenth of that."""
    rig = Rig(make_engine(name), config(slots=64, values_per_chunk=16, index_entries=4096))
    batch, rounds, chunks = 64, 50 if name == "numpy" else 500, 500
    rig.headers.job[:], rig.headers.epoch[:], rig.headers.value_count[:] = JOB, EPOCH, 16
    sources = np.arange(batch) % 4
    after_warm_up = 0
    for round_number in range(rounds):
        rig.announce(0b1111, round_number)
        rig.headers.round[:] = round_number
        for first in range(0, chunks, 16):
            rig.headers.chunk[:] = first + np.arange(batch) // 4
            rig.headers.source[:] = sources
            now_ns = round_number * 2 * DEADLINE_NS + first
            assert rig.engine.submit(rig.headers, rig.payloads, batch, now_ns) == batch
            assert rig.engine.poll(rig.out, rig.out_payloads, now_ns) == 16
        rig.engine.drop_clique(JOB, EPOCH, round_number)
        if round_number == rounds // 10:
            after_warm_up = resident_kb()
    assert rig.counters().added >= rounds * chunks * 4
    assert resident_kb() - after_warm_up < 1024
    rig.engine.close()


def sums_by_order(name: str, number_format: int, payloads: np.ndarray) -> set[bytes]:
    """The distinct results of one chunk, for 50 orders of arrival."""
    rng = np.random.default_rng(4)
    seen = set()
    rig = Rig(make_engine(name), config(values_per_chunk=payloads.shape[1], number_format=number_format))
    for round_number in range(50):
        rig.announce((1 << len(payloads)) - 1, round_number)
        for source in rng.permutation(len(payloads)).tolist():
            values = payloads[source].view(np.int32).tolist()
            rig.submit(Contribution(source, values, round=round_number))
        [result] = rig.poll()
        seen.add(np.array(result.values, np.int32).tobytes())
        rig.engine.drop_clique(JOB, EPOCH, round_number)
    rig.engine.close()
    return seen


@pytest.mark.parametrize("name", summing_engines())
def test_integer_sum_of_nine_islands_does_not_depend_on_order_and_a_float_sum_does(name: str) -> None:
    rng = np.random.default_rng(5)
    integers = rng.integers(-(2**31), 2**31, (9, 100), np.int32)
    [total] = sums_by_order(name, 0, integers)
    assert total == integers.sum(axis=0, dtype=np.int32).tobytes()
    assert len(sums_by_order(name, 1, rng.standard_normal((9, 100), np.float32))) > 1
