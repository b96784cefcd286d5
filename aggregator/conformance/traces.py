"""Traces: what an edge hands to its engine, packet by packet, with everything that can go wrong.

A trace is made from its seed, so that half a million packets need no file; the same numpy makes the same trace always.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from aggregator.engine import EngineConfig

ISLANDS = 9
JOB = 0xFFFFFFF0
_MILLISECOND = 1_000_000
_ROUND_NS = 40 * _MILLISECOND
_DEADLINE_NS = 30 * _MILLISECOND
_WRAP = 1 << 32


@dataclass(frozen=True)
class Trace:
    """What distinguishes one trace.

    `rounds` begin every 40 ms, from `first_round` on, and wrap at 2^32; the epoch changes in the middle. `loss`,
    `duplicates`, `hostile`: fractions of packets. `spread_ns`: how far apart a chunk's contributions arrive.
    `keep_rounds`: how many rounds after its start a round is dropped. `poll_every`: the engine is polled after so many
    batches only.
    """

    name: str
    seed: int
    config: EngineConfig
    rounds: int
    chunks: int
    first_round: int = 0
    first_chunk: int = 0
    shards: int = 1
    loss: float = 0.02
    duplicates: float = 0.03
    hostile: float = 0.01
    spread_ns: int = 12 * _MILLISECOND
    keep_rounds: int = 3
    poll_capacity: int = 64
    poll_every: int = 1


@dataclass(frozen=True)
class Packets:
    """Contributions in order of arrival; `payloads` of shape (packets, values_per_chunk)."""

    now_ns: NDArray[np.int64]
    job: NDArray[np.uint32]
    epoch: NDArray[np.uint32]
    round: NDArray[np.uint32]
    shard: NDArray[np.uint16]
    chunk: NDArray[np.uint32]
    value_count: NDArray[np.uint16]
    source: NDArray[np.uint8]
    payloads: NDArray[np.int32]


@dataclass(frozen=True)
class Announce:
    job: int
    epoch: int
    round: int
    expected: int
    deadline_ns: int


@dataclass(frozen=True)
class Drop:
    job: int
    epoch: int
    round: int


@dataclass(frozen=True)
class Flush:
    now_ns: int


Step = Packets | Announce | Drop | Flush


def _config(slots: int, index_entries: int, values_per_chunk: int = 16, **fields: object) -> EngineConfig:
    base = EngineConfig(slots, values_per_chunk, index_entries, hash_key=0x0123456789ABCDEF, max_batch=64)
    return replace(base, reordering_ns=25 * _MILLISECOND, **fields)  # type: ignore[arg-type]


TRACES = (
    Trace("roomy", 1, _config(4096, 1 << 14), rounds=24, chunks=200),
    Trace("lossy", 2, _config(4096, 1 << 14, late_policy="drop"), rounds=24, chunks=200, loss=0.2, duplicates=0.2),
    Trace("short-pool", 3, _config(60, 1 << 14), rounds=24, chunks=200, spread_ns=35 * _MILLISECOND),
    Trace("short-index", 4, _config(64, 256), rounds=24, chunks=200),
    Trace(
        "evict-old",
        5,
        _config(60, 1 << 14, collision_policy="evict-old"),
        rounds=24,
        chunks=200,
        spread_ns=35 * _MILLISECOND,
    ),
    Trace("wrap", 6, _config(4096, 1 << 14), rounds=24, chunks=200, first_round=_WRAP - 8, first_chunk=_WRAP - 100),
    Trace("slow-host", 7, _config(512, 1 << 14, max_batch=5), rounds=24, chunks=200, poll_capacity=3, poll_every=4),
    Trace("hosts", 8, _config(4096, 1 << 15), rounds=24, chunks=70, shards=3, hostile=0.2),
    Trace("forgetful", 9, _config(256, 1 << 12), rounds=24, chunks=200, keep_rounds=1, spread_ns=35 * _MILLISECOND),
    Trace("jumbo", 10, _config(300, 1 << 12, values_per_chunk=2227), rounds=6, chunks=200),
    Trace("capped", 12, _config(200, 1 << 14, slots_per_source=20), rounds=24, chunks=200, spread_ns=35 * _MILLISECOND),
    Trace("f32", 11, _config(4096, 1 << 14, number_format=1), rounds=24, chunks=200),
)


def steps(trace: Trace) -> Iterator[Step]:
    """The trace, in order of time. Packets between two other steps come as one: the runner cuts them in batches."""
    rng = np.random.default_rng(trace.seed)
    half = trace.rounds // 2
    # A packet may arrive long after its round began, so packets wait here until no earlier one can come.
    waiting: list[Packets] = []
    for k in range(trace.rounds + trace.keep_rounds):
        start_ns = k * _ROUND_NS
        if k < trace.rounds:
            epoch, number = 7 + (k >= half), (trace.first_round + k) % _WRAP
            members = rng.permutation(ISLANDS)[: int(rng.choice([2, 3, 8]))]
            expected = sum(1 << int(member) for member in members)
            yield Announce(JOB, epoch, number, expected, _DEADLINE_NS + int(rng.integers(0, 3)) * _MILLISECOND)
            waiting.append(_round_packets(trace, rng, members, (epoch, number), start_ns))
        due = [_select(packets, packets.now_ns < start_ns + _ROUND_NS) for packets in waiting]
        waiting = [_select(packets, packets.now_ns >= start_ns + _ROUND_NS) for packets in waiting]
        waiting = [packets for packets in waiting if len(packets.now_ns)]
        if due:
            yield _merge(due)
        old = k - trace.keep_rounds
        if 0 <= old < trace.rounds:
            yield Drop(JOB, 7 + (old >= half), (trace.first_round + old) % _WRAP)
        if k % 10 == 9:
            yield Flush(start_ns + _ROUND_NS)


def _round_packets(
    trace: Trace, rng: np.random.Generator, members: NDArray[np.int64], epoch_and_round: tuple[int, int], start_ns: int
) -> Packets:
    """What the members send in one round, and what the network and others make of it."""
    epoch, number = epoch_and_round
    shard, chunk, member = (
        axis.ravel()
        for axis in np.meshgrid(
            np.arange(trace.shards), np.arange(trace.chunks), np.arange(len(members)), indexing="ij"
        )
    )
    count = len(shard)
    offsets = rng.integers(0, trace.spread_ns, len(members))
    arrival = start_ns + offsets[member] + chunk * (20 * _MILLISECOND // trace.chunks)
    arrival = arrival + rng.integers(0, _MILLISECOND, count)
    values = trace.config.values_per_chunk
    last = chunk == trace.chunks - 1
    packets = Packets(
        now_ns=arrival.astype(np.int64),
        job=np.full(count, JOB, np.uint32),
        epoch=np.full(count, epoch, np.uint32),
        round=np.full(count, number, np.uint32),
        shard=shard.astype(np.uint16),
        chunk=((trace.first_chunk + chunk) % _WRAP).astype(np.uint32),
        value_count=np.where(last, max(1, values // 2), values).astype(np.uint16),
        source=members[member].astype(np.uint8),
        payloads=_payloads(trace.config, rng, count),
    )
    kept = rng.random(count) >= trace.loss
    copies = _select(packets, rng.random(count) < trace.duplicates)
    # A copy comes up to a round and a half later: in time, late, after its tombstone or after its round.
    copies = replace(copies, now_ns=copies.now_ns + rng.integers(0, 60 * _MILLISECOND, len(copies.now_ns)))
    spoiled = _spoil(_select(packets, rng.random(count) < trace.hostile), rng)
    return _merge([_select(packets, kept), copies, spoiled])


def _payloads(config: EngineConfig, rng: np.random.Generator, count: int) -> NDArray[np.int32]:
    shape = (count, config.values_per_chunk)
    if config.number_format == 1:
        floats: NDArray[np.int32] = rng.standard_normal(shape, np.float32).view(np.int32)
        return floats
    return rng.integers(-(2**31), 2**31, shape, np.int32)


def _spoil(packets: Packets, rng: np.random.Generator) -> Packets:
    """Packets that must be refused: each has one field that is not what was announced."""
    count = len(packets.now_ns)
    kind = rng.integers(0, 6, count)
    one = np.uint32(1)
    return replace(
        packets,
        job=np.where(kind == 0, packets.job + one, packets.job),
        epoch=np.where(kind == 1, packets.epoch - np.uint32(3), packets.epoch),
        round=np.where(kind == 2, packets.round + np.uint32(9), packets.round),
        source=np.where(kind == 3, rng.integers(ISLANDS, 256, count), packets.source).astype(np.uint8),
        value_count=np.where(
            kind >= 4, np.where(kind == 4, 0, packets.payloads.shape[1] + 1), packets.value_count
        ).astype(np.uint16),
    )


def _select(packets: Packets, where: NDArray[np.bool_]) -> Packets:
    return Packets(*(getattr(packets, name)[where] for name in Packets.__dataclass_fields__))


def _merge(parts: list[Packets]) -> Packets:
    """All packets, in order of arrival; those that arrive together in the order given."""
    order = np.argsort(np.concatenate([part.now_ns for part in parts]), kind="stable")
    return Packets(
        *(np.concatenate([getattr(part, name) for part in parts])[order] for name in Packets.__dataclass_fields__)
    )
