"""Engine `passthrough`: sums nothing. Every contribution goes on to the host as it came, flagged; duplicates do not.

An edge falls back on it when its engine fails; it also shows what a run costs without an aggregator.
"""

from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from aggregator.engine import Capabilities, Verdict
from aggregator.engines.numpy_engine import Clique, NumpyEngine


class PassthroughEngine(NumpyEngine):
    """The reference without a slot: every newcomer bypasses."""

    def capabilities(self) -> Capabilities:
        return replace(super().capabilities(), name="passthrough")

    def take(self, clique: Clique, place: int, source: int, values: NDArray[Any], now_ns: int) -> Verdict:
        entry = clique.entries.get(place) or self.enter(clique, place, len(values))
        if entry is None:
            clique.counts.bypassed_index += 1
            return Verdict.BYPASSED_COLLISION
        if entry.seen >> source & 1:
            clique.counts.duplicate += 1
            return Verdict.DUPLICATE
        entry.seen |= 1 << source
        if not entry.until_ns:
            self.bury(entry, now_ns)
        clique.counts.bypassed_pool += 1
        return Verdict.BYPASSED_COLLISION
