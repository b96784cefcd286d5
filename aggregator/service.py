"""Which engine works: the one that was asked for, or `passthrough` while that is loading and after it has failed."""

import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from aggregator.engine import Counters, Engine, EngineConfig, EngineError, HeaderBatch
from aggregator.engines import make_engine
from aggregator.engines.passthrough import PassthroughEngine


class EngineService:
    """An engine that is always there. Raises EngineError if the engine cannot be opened.

    For `load_ns` from the first round's announcement on the engine is loading, as a card that takes in its image. It
    begins its work with the first round that is announced after that while no other round is open: a round that began
    without it ends so.
    """

    def __init__(self, name: str, config: EngineConfig, load_ns: int):
        self._config = config
        self._load_ns = load_ns
        self._ready_ns: int | None = None
        engine = make_engine(name)
        engine.open(config)
        self._loading: Engine | None = engine if load_ns else None
        self._failed: Engine | None = None
        self._held = 0
        self._rounds: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._past_refusals: Counter[str] = Counter()
        self.failure = ""
        self.engine = self._open_passthrough() if load_ns else engine

    def _open_passthrough(self) -> PassthroughEngine:
        engine = PassthroughEngine()
        engine.open(replace(self._config, collision_policy="bypass-new", number_format=0, slots_per_source=None))
        return engine

    def close(self) -> None:
        """Close all engines."""
        for engine in (self.engine, self._loading, self._failed):
            if engine is not None:
                with suppress(Exception):
                    engine.close()

    @property
    def passing(self) -> bool:
        """Whether contributions pass through."""
        return isinstance(self.engine, PassthroughEngine)

    @property
    def loading(self) -> bool:
        """Whether the engine that was asked for has not begun its work yet."""
        return self._loading is not None

    @property
    def failing(self) -> bool:
        """Whether an engine has failed and may still hold results, which go out first."""
        return self._failed is not None

    def set_clique(self, job: int, epoch: int, round_number: int, expected: int, deadline_ns: int, now_ns: int) -> None:
        """As the engine's."""
        if self._ready_ns is None:
            self._ready_ns = now_ns + self._load_ns
        if self._loading is not None and not self._rounds and now_ns >= self._ready_ns:
            self._past_refusals += refusals(self.engine)
            self.engine, self._loading = self._loading, None
        self.engine.set_clique(job, epoch, round_number, expected, deadline_ns)
        self._rounds[job, epoch, round_number] = (expected, deadline_ns)

    def drop_clique(self, job: int, epoch: int, round_number: int) -> Counters:
        """As the engine's."""
        del self._rounds[job, epoch, round_number]
        return self.engine.drop_clique(job, epoch, round_number)

    def submit(self, headers: HeaderBatch, payloads: NDArray[np.int32], count: int, now_ns: int) -> bool:
        """Give a batch to the engine, in which no results wait: it takes the whole batch.

        False if it has failed: the rows are held then, and to be submitted again when `take_held` says so.
        """
        try:
            accepted = self.engine.submit(headers, payloads, count, now_ns)
            if accepted != count:
                raise EngineError(f"took {accepted} of {count} contributions although no results were waiting")
        except Exception as error:
            self.fall_back(error, count, now_ns)
            return False
        return True

    def fall_back(self, error: Exception, held: int, now_ns: int) -> None:
        """Go on without an engine that has failed: pass through what comes. Once more it is asked for what it holds.

        The first `held` rows are those of the batch that it failed with.
        """
        if self.passing:
            raise error
        self.failure = f"{type(error).__name__}: {error}"
        print(f"edge: engine failed, passing through: {self.failure}", file=sys.stderr)
        self._held = held
        self._failed, self.engine = self.engine, self._open_passthrough()
        for name, (expected, deadline_ns) in self._rounds.items():
            self.engine.set_clique(*name, expected, deadline_ns)
        with suppress(Exception):
            self._past_refusals += refusals(self._failed)
            self._failed.flush(now_ns)

    def poll(self, out: HeaderBatch, payloads: NDArray[np.int32], now_ns: int) -> int:
        """Poll the engine; one that has failed comes first."""
        if self._failed is None:
            try:
                return self.engine.poll(out, payloads, now_ns)
            except Exception as error:
                self.fall_back(error, 0, now_ns)
        assert self._failed is not None
        try:
            return self._failed.poll(out, payloads, now_ns)
        except Exception:
            return 0

    def give_up_failed(self) -> int:
        """The failed engine holds nothing more. Returns how many rows of its last batch are to be submitted again.

        They may be in sums that have just gone out. A host drops what overlaps with what it has, so the single
        contributions have to come after the sums.
        """
        held, self._held, self._failed = self._held, 0, None
        return held

    def next_deadline_ns(self) -> int | None:
        """As the engine's; none while an engine fails."""
        return None if self.failing else self.engine.next_deadline_ns()

    def refusals(self) -> Counter[str]:
        """What all engines have refused so far, by the reasons of `retired`."""
        return self._past_refusals + refusals(self.engine)


def refusals(engine: Engine) -> Counter[str]:
    """What one engine has refused."""
    counters = engine.stats().counters
    return Counter(epoch=counters.refused_epoch, source=counters.refused_source, length=counters.refused_length)
