"""An edge without a run: rounds are admitted as they come, in a window that follows the newest one.

Run control announces rounds one by one. Without it, the `WINDOW` rounds from the first one on are admitted; as soon as
one comes that is further ahead than `KEPT`, the oldest are dropped and as many new ones admitted. So a source cannot
open more rounds than that, and a packet of none of them is refused.
"""

import signal
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

from aggregator.edge import Edge, EdgeSetup
from aggregator.edge_loop import serve_until_readable
from aggregator.native_loop import ROUNDS

WINDOW = 32
KEPT = 8
_EPOCH = 0
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


class Standalone:
    """An edge and its window of rounds. Raises OSError or EngineError if it cannot be set up."""

    def __init__(self, setup: EdgeSetup, flows: Sequence[tuple[str, str]], deadline_ms: float, first_round: int):
        self.edge = Edge(setup)
        expected = sum(1 << contributor for contributor in set(setup.contributors.values()))
        self.edge.begin_epoch(_EPOCH, [{"expected": expected, "deadline_ns": round(deadline_ms * 1e6)}], flows)
        self._oldest = first_round
        self._totals: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._repair: Counter[str] = Counter()
        self._high_water = 0
        for ahead in range(WINDOW):
            self.edge.arm((first_round + ahead) % ROUNDS, _EPOCH, 0)

    def serve(self, seconds: float | None) -> None:
        """Serve until SIGINT or SIGTERM, or for so many seconds, more than 0. Call it from the main thread."""
        with _Stop(seconds) as stop:
            while not stop.wanted:
                ahead = range(self._oldest + KEPT + 1, self._oldest + WINDOW)
                newest = serve_until_readable(self.edge, stop.fileno(), ahead)
                if newest is not None:
                    self._follow(newest)

    def _follow(self, newest: int) -> None:
        """Move the window so that `KEPT` rounds before the newest one stay in it."""
        for _ in range((newest - KEPT - self._oldest) % ROUNDS):
            self._add(self.edge.retire(self._oldest))
            self.edge.arm((self._oldest + WINDOW) % ROUNDS, _EPOCH, 0)
            self._oldest = (self._oldest + 1) % ROUNDS

    def close(self) -> dict[str, Any]:
        """Send what is there, end all rounds and close; returns the counts of everything."""
        now_ns = time.monotonic_ns()
        self.edge.service.engine.flush(now_ns)
        self.edge.serve(now_ns)
        for ahead in range(WINDOW):
            self._add(self.edge.retire((self._oldest + ahead) % ROUNDS))
        self.edge.close()
        failure = self.edge.service.failure
        return {
            **self._totals,
            "high_water_slots": self._high_water,
            "refused": dict(sorted(self._refused.items())),
            "repair": dict(sorted(self._repair.items())),
            "engine_failure": failure,
        }

    def _add(self, report: Mapping[str, Any]) -> None:
        self._high_water = max(self._high_water, report["high_water_slots"])
        self._refused.update(report["refused"])
        self._repair.update(report["repair"])
        for name in ("complete", "timeout", "collision", "passthrough", "late", "duplicate", "socket_overflows"):
            self._totals[name] += report[name]


class _Stop:
    """A descriptor that is readable from SIGINT, SIGTERM or the end of the time on."""

    def __init__(self, seconds: float | None) -> None:
        self.wanted = False
        self._seconds = seconds
        self._ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)

    def __enter__(self) -> Self:
        # The kernel interrupts the loop, in C or in Python, and the interpreter then writes to the descriptor.
        self._before = {number: signal.signal(number, self._note) for number in _STOPPING}
        signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        if self._seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, self._seconds)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._ours.close()
        self._theirs.close()

    def _note(self, *_: object) -> None:
        self.wanted = True

    def fileno(self) -> int:
        return self._ours.fileno()
