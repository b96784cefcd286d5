"""An engine with arrays around it, so that a test reads as a list of contributions and a list of results."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggregator.engine import Counters, Engine, EngineConfig, Verdict, empty_headers
from aggregator.engines import engine_names
from aggregator.wire.packet import Reason

JOB, EPOCH = 7, 2
DEADLINE_NS = 1000
REORDERING_NS = 500


@dataclass(frozen=True)
class Contribution:
    source: int
    values: list[int]
    chunk: int = 0
    shard: int = 0
    round: int = 0
    epoch: int = EPOCH
    job: int = JOB


@dataclass(frozen=True)
class Result:
    chunk: int
    reason: Reason
    bitmap: int
    values: list[int]
    shard: int = 0
    round: int = 0
    epoch: int = EPOCH
    job: int = JOB


def config(slots: int = 4, values_per_chunk: int = 3, **fields: object) -> EngineConfig:
    entries = max(16, 1 << (4 * slots - 1).bit_length())
    given: dict[str, object] = {"index_entries": entries, "reordering_ns": REORDERING_NS, **fields}
    return EngineConfig(slots=slots, values_per_chunk=values_per_chunk, **given)  # type: ignore[arg-type]


class Rig:
    """Wraps an open engine; `announce` admits round 0 of EPOCH unless told otherwise."""

    def __init__(self, engine: Engine, engine_config: EngineConfig, capacity: int = 64):
        engine.open(engine_config)
        self.engine = engine
        self.values_per_chunk = engine_config.values_per_chunk
        self.headers = empty_headers(capacity)
        self.payloads: NDArray[np.int32] = np.zeros((capacity, self.values_per_chunk), np.int32)
        self.out = empty_headers(capacity)
        self.out_payloads: NDArray[np.int32] = np.zeros((capacity, self.values_per_chunk), np.int32)

    def announce(
        self, expected: int, round_number: int = 0, epoch: int = EPOCH, deadline_ns: int = DEADLINE_NS
    ) -> None:
        self.engine.set_clique(JOB, epoch, round_number, expected, deadline_ns)

    def submit(self, *contributions: Contribution, now_ns: int = 0) -> list[Verdict]:
        """Verdicts of the contributions that were accepted."""
        headers = self.headers
        for i, one in enumerate(contributions):
            headers.job[i], headers.epoch[i], headers.round[i] = one.job, one.epoch, one.round
            headers.shard[i], headers.chunk[i], headers.source[i] = one.shard, one.chunk, one.source
            headers.value_count[i] = len(one.values)
            fitting = one.values[: self.values_per_chunk]
            self.payloads[i, : len(fitting)] = fitting
        accepted = self.engine.submit(headers, self.payloads, len(contributions), now_ns)
        return [Verdict(int(verdict)) for verdict in headers.verdict[:accepted]]

    def poll(self, now_ns: int = 0, most: int | None = None) -> list[Result]:
        """One poll for at most `most` results."""
        out, payloads = self.out, self.out_payloads[:most]
        count = self.engine.poll(out, payloads, now_ns)
        for i in range(count):
            assert int(out.contributors[i]) == int(out.bitmap[i]).bit_count()
        return [
            Result(
                chunk=int(out.chunk[i]),
                reason=Reason(int(out.reason[i])),
                bitmap=int(out.bitmap[i]),
                values=payloads[i, : int(out.value_count[i])].tolist(),
                shard=int(out.shard[i]),
                round=int(out.round[i]),
                epoch=int(out.epoch[i]),
                job=int(out.job[i]),
            )
            for i in range(count)
        ]

    def counters(self) -> Counters:
        return self.engine.stats().counters


def summing_engines() -> list[str]:
    """Engines that are here and keep all the rules."""
    return [name for name in ("native", "numpy") if name in engine_names()]


def accounted(counters: Counters) -> int:
    """Contributions by what became of them; must equal `counters.contributions`."""
    return (
        counters.added
        + counters.bypassed_pool
        + counters.bypassed_index
        + counters.bypassed_source
        + counters.late
        + counters.duplicate
        + counters.refused_epoch
        + counters.refused_source
        + counters.refused_length
    )
