"""An edge without a run: rounds are admitted as they come, in a window that follows the newest one.

Run control announces rounds one by one. Without it, the `WINDOW` rounds from the first one on are admitted; whenever
contributions of a later one than before have come, those further back than `KEPT` are dropped and as many new ones
admitted. So a source cannot open more rounds than that, and a packet of none of them is refused.
"""

import signal
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import numpy as np

from aggregator.edge import Edge, EdgeSetup
from aggregator.edge_loop import serve_until_readable

WINDOW = 32
KEPT = 8
TICK_S = 0.05
_ROUNDS = 1 << 32
_EPOCH = 0


class Standalone:
    """An edge and its window of rounds. Raises OSError or EngineError if it cannot be set up."""

    def __init__(self, setup: EdgeSetup, flows: Sequence[tuple[str, str]], deadline_ms: float, first_round: int):
        self.edge = Edge(setup)
        expected = sum(1 << contributor for contributor in set(setup.contributors.values()))
        self.edge.begin_epoch(_EPOCH, [{"expected": expected, "deadline_ns": round(deadline_ms * 1e6)}], flows)
        self._oldest = first_round
        self._totals: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._high_water = 0
        for ahead in range(WINDOW):
            self.edge.arm((first_round + ahead) % _ROUNDS, _EPOCH, 0)

    def serve(self, seconds: float | None) -> None:
        """Serve until SIGINT or SIGTERM, or for so many seconds. Call it from the main thread."""
        began = time.monotonic()
        with _Wakeups() as wakeups:
            while not wakeups.stopped and (seconds is None or time.monotonic() - began < seconds):
                serve_until_readable(self.edge, wakeups.fileno())
                wakeups.take()
                self._follow()

    def _follow(self) -> None:
        """Move the window after the newest round of the batch that came last."""
        seen = (self.edge.receiver.headers.round.astype(np.int64) - self._oldest) % _ROUNDS
        newest = int(seen[seen < WINDOW].max(initial=0))
        for _ in range(newest - KEPT):
            self._add(self.edge.retire(self._oldest))
            self.edge.arm((self._oldest + WINDOW) % _ROUNDS, _EPOCH, 0)
            self._oldest = (self._oldest + 1) % _ROUNDS

    def close(self) -> dict[str, Any]:
        """Send what is there, end all rounds and close; returns the counts of everything."""
        now_ns = time.monotonic_ns()
        self.edge.service.engine.flush(now_ns)
        self.edge.serve(now_ns)
        for ahead in range(WINDOW):
            self._add(self.edge.retire((self._oldest + ahead) % _ROUNDS))
        self.edge.close()
        failure = self.edge.service.failure
        return {
            **self._totals,
            "high_water_slots": self._high_water,
            "refused": dict(sorted(self._refused.items())),
            "engine_failure": failure,
        }

    def _add(self, report: Mapping[str, Any]) -> None:
        self._high_water = max(self._high_water, report["high_water_slots"])
        self._refused.update(report["refused"])
        for name in ("complete", "timeout", "collision", "passthrough", "late", "duplicate", "socket_overflows"):
            self._totals[name] += report[name]


class _Wakeups:
    """A descriptor that is readable after each tick and after each request to stop."""

    def __init__(self) -> None:
        self.stopped = False
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)

    def __enter__(self) -> Self:
        # The kernel interrupts the loop, in C or in Python, and the interpreter then writes to the descriptor.
        self._before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda *_: None)
        signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._ours.close()
        self._theirs.close()

    def _stop(self, *_: object) -> None:
        self.stopped = True

    def fileno(self) -> int:
        return self._ours.fileno()

    def take(self) -> None:
        """Make the descriptor unreadable until the next wake-up."""
        with suppress(BlockingIOError):
            self._ours.recv(4096)
