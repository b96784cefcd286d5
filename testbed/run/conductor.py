"""Whether another round follows: pauses and stops, asked for from any thread, and heeded between two rounds."""

import threading

from testbed.errors import TestbedError
from testbed.run.processes import Fleet

_LOOK_S = 0.05


class Conductor:
    """Rounds are counted from 0."""

    def __init__(self, rounds: int) -> None:
        self._lock = threading.Lock()
        self._rounds = rounds
        self._last = rounds - 1
        self._current = 0
        self._pausing = False
        self._holding = False

    @property
    def last_round(self) -> int:
        """The round after which the run ends."""
        return self._last

    @property
    def pausing(self) -> bool:
        """Whether no further round may start for now."""
        return self._pausing

    @property
    def holding(self) -> bool:
        """Whether the run stands still, with no round under way."""
        return self._holding

    def pause(self) -> int:
        """Start no round after the one that is under way or next to come; returns it. Raises TestbedError."""
        with self._lock:
            if self._pausing:
                raise TestbedError("the run is paused already; go on with testbed resume")
            if self._current >= self._last:
                raise TestbedError("the last round is under way: there is nothing to pause")
            self._pausing = True
            return self._current

    def resume(self) -> int:
        """Go on after a pause; returns the next round. Raises TestbedError."""
        with self._lock:
            if not self._pausing:
                raise TestbedError("the run is not paused")
            self._pausing = False
            return self._current + 1

    def stop(self, after_round: int | None = None) -> int:
        """Have the run end after a round, None: the one under way or next to come; returns it. Ends a pause.

        Raises TestbedError for a round that is over, or that the run does not have.
        """
        with self._lock:
            if after_round is not None and not self._current <= after_round < self._rounds:
                raise TestbedError(
                    f"after_round: round {after_round + 1} is over, or none of this run's {self._rounds}; "
                    f"round {self._current + 1} is under way or next"
                )
            self._last = self._current if after_round is None else after_round
            if self._last == self._current:
                self._pausing = False
            return self._last

    def started(self, number: int) -> None:
        """A round has started."""
        with self._lock:
            self._current = number

    def goes_on(self, number: int, fleet: Fleet) -> bool:
        """After a round: wait while the run is paused, then say whether another round follows. Raises RunFailed."""
        self._holding = self._pausing
        try:
            while self._pausing:
                fleet.wait(_LOOK_S)
        finally:
            self._holding = False
        with self._lock:
            if number >= self._last:
                return False
            self._current = number + 1
            return True
