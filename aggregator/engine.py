"""What an aggregator engine is. Read this first; each engine has a module of its own in `aggregator/engines/`.

An engine sums contributions. It is given batches of them (`submit`) and is asked for results (`poll`); it owns the
slots and nothing else: sockets, result numbers, the resend buffer and repairs live outside. It reads no clock and is
not random: time comes in as `now_ns`, which never decreases, so a recorded trace replays bit for bit on every engine.

The rules, which docs/aggregator.md explains and tests/unit/aggregator names one by one:

- A key is (job, epoch, round, shard, chunk). Only keys of announced rounds (`set_clique`) are summed.
- The contributor bitmap of a key is tested before data is touched: a duplicate never adds.
- A key's first contribution takes a slot; the contribution that completes the key needs none.
- A slot is evicted `complete` (every expected contributor seen) or `timeout` (its deadline, counted from when it was
  taken, has come); then a tombstone remembers the key for the deadline plus `reordering_ns`.
- Without a free slot, or without a free way in the key's index set, the newcomer bypasses. With the collision policy
  `evict-old` it takes the slot that is nearest to its deadline, whose sum goes out as it is.
- A newcomer whose contributor has opened as many slots as one may bypasses too: nobody can take all memory.
- Sums are modulo 2^32; headroom is the sender's business.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

INDEX_WAYS = 16
MAX_CONTRIBUTORS = 64
_WORD = (1 << 64) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15


class Verdict(IntEnum):
    """What `submit` did with one contribution."""

    ADDED = 0
    BYPASSED_COLLISION = 1
    BYPASSED_LATE = 2
    DUPLICATE = 3
    DROPPED_LATE = 4
    REFUSED_EPOCH = 5
    REFUSED_SOURCE = 6
    REFUSED_LENGTH = 7


BYPASSED = (Verdict.BYPASSED_COLLISION, Verdict.BYPASSED_LATE)
"""Verdicts that oblige the caller to send the contribution on unsummed; its payload is still in the caller's arrays."""


@dataclass(frozen=True)
class HeaderBatch:
    """Headers of a batch as a structure of arrays, owned by the caller; row i belongs to payload row i.

    `submit` reads the key, `source` and `value_count` and writes `verdict`; `poll` writes everything but `source` and
    `verdict`. All arrays are contiguous and have the batch's capacity as length.
    """

    job: NDArray[np.uint32]
    epoch: NDArray[np.uint32]
    round: NDArray[np.uint32]
    shard: NDArray[np.uint16]
    chunk: NDArray[np.uint32]
    value_count: NDArray[np.uint16]
    source: NDArray[np.uint8]
    verdict: NDArray[np.uint8]
    reason: NDArray[np.uint8]
    contributors: NDArray[np.uint8]
    bitmap: NDArray[np.uint64]


def empty_headers(capacity: int) -> HeaderBatch:
    """Arrays for up to `capacity` headers, all zero."""
    return HeaderBatch(
        job=np.zeros(capacity, np.uint32),
        epoch=np.zeros(capacity, np.uint32),
        round=np.zeros(capacity, np.uint32),
        shard=np.zeros(capacity, np.uint16),
        chunk=np.zeros(capacity, np.uint32),
        value_count=np.zeros(capacity, np.uint16),
        source=np.zeros(capacity, np.uint8),
        verdict=np.zeros(capacity, np.uint8),
        reason=np.zeros(capacity, np.uint8),
        contributors=np.zeros(capacity, np.uint8),
        bitmap=np.zeros(capacity, np.uint64),
    )


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do; `open` refuses what goes beyond."""

    name: str
    kind: str
    number_formats: tuple[int, ...]
    collision_policies: tuple[str, ...]
    max_slots: int
    max_values_per_chunk: int
    index_ways: int
    max_contributors: int
    max_batch: int
    max_rounds: int


@dataclass(frozen=True)
class EngineConfig:
    """What an engine is opened with.

    `slots`: partial sums of `values_per_chunk` values: the memory budget. `index_entries`: keys that can be remembered,
    tombstones included: a power of two, at least 4 × slots and at least INDEX_WAYS. `hash_key`: 64 bits of the index's
    hash (`index_set`). `reordering_ns`: how long beyond the deadline a tombstone stays. `max_batch`: results that can
    wait for `poll`, outside the budget. `slots_per_source`: how many open slots one contributor may have taken at a
    time (None: no cap). `late_policy`: `bypass` or `drop`. `collision_policy`: `bypass-new` or
    `evict-old`. `number_format`: as in docs/wire-format.md.
    """

    slots: int
    values_per_chunk: int
    index_entries: int
    hash_key: int = 0
    reordering_ns: int = 1_000_000_000
    max_batch: int = 64
    slots_per_source: int | None = None
    late_policy: str = "bypass"
    collision_policy: str = "bypass-new"
    number_format: int = 0


@dataclass(slots=True)
class Counters:
    """Monotonic counts. `contributions` is the sum of `added`, `bypassed_…`, `late`, `duplicate` and `refused_…`.

    `bypassed_…`: for want of a slot (`pool`) or a way (`index`), or because its contributor has its share (`source`).

    `complete`, `timeout` and `collision` count results by reason; `late` counts contributions by either late policy;
    `abandoned` counts slots that were open when their round was dropped. `longest_wait_ns`: the longest time from
    taking a slot to the contribution that completed its key; the total is the largest, not the sum.
    """

    contributions: int = 0
    added: int = 0
    complete: int = 0
    timeout: int = 0
    collision: int = 0
    bypassed_pool: int = 0
    bypassed_index: int = 0
    bypassed_source: int = 0
    late: int = 0
    duplicate: int = 0
    refused_epoch: int = 0
    refused_source: int = 0
    refused_length: int = 0
    abandoned: int = 0
    longest_wait_ns: int = 0

    def include(self, other: "Counters") -> None:
        """Add to these the counts of another round."""
        for name, value in asdict(other).items():
            mine = getattr(self, name)
            setattr(self, name, max(mine, value) if name == "longest_wait_ns" else mine + value)


@dataclass(frozen=True)
class Stats:
    """Totals since `open` or `reset`; `high_water_slots` since the last `take_high_water`."""

    counters: Counters
    slots_in_use: int
    high_water_slots: int


class EngineError(Exception):
    """An engine cannot do what it is asked; the message is one line that names the field and the way out."""


class Engine(Protocol):
    """One engine. Calls come from one thread; everything but `capabilities` needs `open` first."""

    def capabilities(self) -> Capabilities:
        """What this engine can do, before it is opened."""
        ...

    def open(self, config: EngineConfig) -> None:
        """Take the memory. Raises EngineError if the config is wrong or beyond the engine's capabilities."""
        ...

    def close(self) -> None:
        """Give the memory back. Safe to call twice."""
        ...

    def reset(self) -> None:
        """Forget rounds, keys, slots, waiting results and counts, of every job."""
        ...

    def set_clique(self, job: int, epoch: int, round_number: int, expected: int, deadline_ns: int) -> None:
        """Announce a round: admit its keys from the contributors in the bitmap `expected`.

        By round and not by epoch alone, since cliques differ from round to round of a schedule. Raises EngineError
        if the round is announced already, if `max_rounds` are, or if `expected` is no bitmap of 1 to 64 contributors.
        """
        ...

    def drop_clique(self, job: int, epoch: int, round_number: int) -> Counters:
        """Forget a round, tombstones included, and return its counts; later packets of it are refused.

        Slots that are still open are given up and counted `abandoned`: flush or wait for deadlines first. Results
        that wait for `poll` still come. Raises EngineError if the round is not announced.
        """
        ...

    def submit(self, headers: HeaderBatch, payloads: NDArray[np.int32], count: int, now_ns: int) -> int:
        """Take the first `count` contributions; payloads of shape (≥ count, values_per_chunk), rows contiguous.

        Returns how many were accepted, in order, with a verdict each; fewer than `count` only if results wait:
        `poll` and submit the rest again. Values beyond a row's `value_count` are ignored.
        """
        ...

    def poll(self, headers: HeaderBatch, payloads: NDArray[np.int32], now_ns: int) -> int:
        """Write results to the first rows and return how many; at most len(payloads).

        Completed (and collided) results come in the order of submission, then slots whose deadline is not after
        `now_ns` in the order of (deadline, slot). Ask again while the arrays come back full.
        """
        ...

    def next_deadline_ns(self) -> int | None:
        """No open slot's deadline is earlier than this; None when no slot is open."""
        ...

    def flush(self, now_ns: int) -> None:
        """Make `now_ns` the deadline of every open slot that has a later one."""
        ...

    def stats(self) -> Stats:
        """Totals and occupancy."""
        ...

    def take_high_water(self) -> int:
        """The most slots in use since the last call (or `open`); counts on from those in use now."""
        ...


EngineFactory = Callable[[], Engine]


def index_set(hash_key: int, key: tuple[int, int, int, int, int], sets: int) -> int:
    """The index set of the key (job, epoch, round, shard, chunk), the same in every engine; `sets` is a power of two.

    Three 64-bit words (job·2^32 + epoch, round·2^32 + chunk, shard), each mixed into the state, which starts as
    `hash_key`: state = (state xor word) · 0x9E3779B97F4A7C15 mod 2^64; state = state xor (state >> 32).
    """
    job, epoch, round_number, shard, chunk = key
    state = hash_key
    for word in (job << 32 | epoch, round_number << 32 | chunk, shard):
        state = ((state ^ word) * _MULTIPLIER) & _WORD
        state ^= state >> 32
    return state & (sets - 1)


def check_config(config: EngineConfig, capabilities: Capabilities) -> None:
    """Raise EngineError unless an engine with these capabilities can be opened with `config`."""
    entries = config.index_entries
    if not 1 <= config.slots <= capabilities.max_slots:
        raise EngineError(f"slots: {config.slots} is not between 1 and {capabilities.max_slots}")
    if not 1 <= config.values_per_chunk <= capabilities.max_values_per_chunk:
        raise EngineError(
            f"values_per_chunk: {config.values_per_chunk} is not between 1 and {capabilities.max_values_per_chunk}"
        )
    if entries & (entries - 1) or entries < max(4 * config.slots, INDEX_WAYS):
        raise EngineError(
            f"index_entries: {entries} is not a power of two that is at least {INDEX_WAYS} and 4 × {config.slots} slots"
        )
    if not 0 <= config.hash_key <= _WORD:
        raise EngineError(f"hash_key: {config.hash_key} does not fit 64 bits")
    if config.reordering_ns < 0:
        raise EngineError(f"reordering_ns: {config.reordering_ns} is negative")
    if config.slots_per_source is not None and config.slots_per_source < 1:
        raise EngineError(f"slots_per_source: {config.slots_per_source} is not at least 1")
    if not 1 <= config.max_batch <= capabilities.max_batch:
        raise EngineError(f"max_batch: {config.max_batch} is not between 1 and {capabilities.max_batch}")
    if config.late_policy not in ("bypass", "drop"):
        raise EngineError(f"late_policy: {config.late_policy!r} is neither bypass nor drop")
    if config.collision_policy not in capabilities.collision_policies:
        raise EngineError(
            f"collision_policy: engine {capabilities.name} has {', '.join(capabilities.collision_policies)}, "
            f"not {config.collision_policy!r}"
        )
    if config.number_format not in capabilities.number_formats:
        raise EngineError(f"number_format: engine {capabilities.name} cannot add format {config.number_format}")


def check_clique(expected: int, deadline_ns: int) -> None:
    """Raise EngineError unless a round can be announced so."""
    if not 0 < expected < 1 << MAX_CONTRIBUTORS:
        raise EngineError(f"expected: {expected:#x} is no bitmap of 1 to {MAX_CONTRIBUTORS} contributors")
    if deadline_ns <= 0:
        raise EngineError(f"deadline_ns: {deadline_ns} is not positive")
