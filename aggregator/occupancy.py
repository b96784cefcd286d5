"""How many slots are in use, over time: a bounded record, thinned out when it is full."""

import ctypes

import numpy as np
from numpy.typing import NDArray

CAPACITY = 256
INTERVAL_NS = 1_000_000


class OccupancyState(ctypes.Structure):
    """Shared with the loop in C (`struct tb_occupancy` of aggregator/native/edge.h)."""

    _fields_ = (
        ("times_ns", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("interval_ns", ctypes.c_int64),
        ("next_ns", ctypes.c_int64),
        ("capacity", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("peak", ctypes.c_uint32),
        ("last", ctypes.c_uint32),
    )


class Occupancy:
    """Samples of one round. A sample holds the most slots that were in use since the sample before.

    One is taken when the number has changed, at most every INTERVAL_NS. When CAPACITY of them are there, every two
    become one and the interval doubles: so the record covers any time, and its peak is never lost.
    """

    def __init__(self) -> None:
        self._times: NDArray[np.int64] = np.zeros(CAPACITY, np.int64)
        self._slots: NDArray[np.uint32] = np.zeros(CAPACITY, np.uint32)
        self.state = OccupancyState(
            times_ns=self._times.ctypes.data,
            slots=self._slots.ctypes.data,
            interval_ns=INTERVAL_NS,
            capacity=CAPACITY,
        )

    def note(self, high_water: int, now_ns: int) -> None:
        """So many slots have been in use since the last call. The loop in C does the same."""
        state = self.state
        state.peak = max(state.peak, high_water)
        if now_ns >= state.next_ns and state.peak != state.last:
            self._append(now_ns)

    def _append(self, now_ns: int) -> None:
        state = self.state
        if state.count == CAPACITY:
            self.thin()
        self._times[state.count], self._slots[state.count] = now_ns, state.peak
        state.last, state.peak = state.peak, 0
        state.count += 1
        state.next_ns = now_ns + state.interval_ns

    def thin(self) -> None:
        """Make room: the higher of each two samples stays, at the time of the second."""
        half = CAPACITY // 2
        self._slots[:half] = self._slots.reshape(half, 2).max(axis=1)
        self._times[:half] = self._times[1::2]
        self.state.count = half
        self.state.interval_ns *= 2

    def take(self, high_water: int, in_use: int, now_ns: int) -> list[tuple[int, int]]:
        """End the record: `high_water` since the last `note`, `in_use` now. Returns (time, slots) pairs."""
        state = self.state
        state.peak = max(state.peak, high_water)
        if state.peak != state.last:
            self._append(now_ns)
        state.peak = in_use
        self._append(now_ns)
        taken = list(zip(self._times[: state.count].tolist(), self._slots[: state.count].tolist(), strict=True))
        state.count, state.interval_ns, state.next_ns = 0, INTERVAL_NS, 0
        return taken
