"""The record of slots in use: bounded, and no peak is lost."""

import numpy as np

from aggregator.occupancy import CAPACITY, INTERVAL_NS, Occupancy


def test_samples_hold_the_most_since_the_sample_before() -> None:
    record = Occupancy()
    record.note(5, 10)
    record.note(9, 20)
    record.note(7, 30)
    record.note(6, 10 + INTERVAL_NS)
    assert record.take(2, 1, 50 + INTERVAL_NS) == [
        (10, 5),
        (10 + INTERVAL_NS, 9),
        (50 + INTERVAL_NS, 2),
        (50 + INTERVAL_NS, 1),
    ]


def test_what_does_not_change_is_not_repeated() -> None:
    record = Occupancy()
    for step in range(10):
        record.note(3, step * 2 * INTERVAL_NS)
    assert record.take(3, 3, 10**9) == [(0, 3), (10**9, 3)]


def test_any_length_fits_and_keeps_its_peak() -> None:
    record = Occupancy()
    rng = np.random.default_rng(2)
    levels = rng.integers(0, 1000, 20 * CAPACITY).tolist()
    peak_at = 7 * CAPACITY + 3
    levels[peak_at] = 5000
    for step, level in enumerate(levels):
        record.note(level, step * INTERVAL_NS)
    samples = record.take(0, 0, len(levels) * INTERVAL_NS)
    assert CAPACITY // 2 < len(samples) <= CAPACITY
    times = [time_ns for time_ns, _ in samples]
    assert times == sorted(times)
    assert max(slots for _, slots in samples) == 5000
    [found] = [time_ns for time_ns, slots in samples if slots == 5000]
    assert 0 <= found - peak_at * INTERVAL_NS <= 64 * INTERVAL_NS


def test_next_record_begins_anew() -> None:
    record = Occupancy()
    record.note(5, 0)
    record.take(5, 4, 1)
    assert record.take(4, 4, INTERVAL_NS) == [(INTERVAL_NS, 4)]
