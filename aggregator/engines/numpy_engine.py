"""Engine `numpy`: the reference. Other engines must give the same results and counts for the same calls.

The set-associative index is kept as what can be seen of it: a dictionary finds a key's entry, and a count of the ways
taken in each set says whether a new key finds room. Which way an entry sits in has no effect.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.engine import (
    INDEX_WAYS,
    MAX_CONTRIBUTORS,
    Capabilities,
    Counters,
    EngineConfig,
    EngineError,
    HeaderBatch,
    Stats,
    Verdict,
    check_clique,
    check_config,
    index_set,
)
from aggregator.wire.packet import Reason

_Numbers = NDArray[Any]
_NEVER = np.iinfo(np.int64).max
_CAPABILITIES = Capabilities(
    name="numpy",
    kind="numpy",
    number_formats=(0, 1),
    collision_policies=("bypass-new", "evict-old"),
    max_slots=1 << 31,
    max_values_per_chunk=1 << 14,
    index_ways=INDEX_WAYS,
    max_contributors=MAX_CONTRIBUTORS,
    max_batch=1 << 16,
    max_rounds=1 << 16,
)


@dataclass(slots=True, eq=False)
class Clique:
    """One announced round. `entries` are found by shard·2^32 + chunk."""

    job: int
    epoch: int
    round: int
    expected: int
    deadline_ns: int
    counts: Counters = field(default_factory=Counters)
    entries: "dict[int, Entry]" = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Entry:
    """What the index knows of one key.

    `seen`: contributors that must not come again. `in_sum`: those in the slot's sum. `slot`: −1 without one.
    `closed`: evicted, so what still comes is late. `until_ns`: when an entry without a slot is forgotten.
    """

    clique: Clique
    place: int
    index_set: int
    value_count: int
    seen: int = 0
    in_sum: int = 0
    slot: int = -1
    closed: bool = False
    until_ns: int = 0


class NumpyEngine:
    """See aggregator.engine.Engine for what each call does."""

    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    def open(self, config: EngineConfig) -> None:
        check_config(config, _CAPABILITIES)
        self._config = config
        # Pages of the pool are backed by memory only once they are written.
        self._number = np.dtype(np.float32 if config.number_format == 1 else np.int32)
        self._pool: _Numbers = np.empty((config.slots, config.values_per_chunk), self._number)
        self._staging: _Numbers = np.empty((config.max_batch, config.values_per_chunk), self._number)
        self._sets = config.index_entries // INDEX_WAYS
        self.reset()

    def close(self) -> None:
        self._pool = self._staging = np.empty((0, 0), np.int32)

    def reset(self) -> None:
        slots = self._config.slots
        self._cliques: dict[tuple[int, int, int], Clique] = {}
        self._ways_taken = [0] * self._sets
        self._free_slots = list(range(slots - 1, -1, -1))
        self._deadlines: NDArray[np.int64] = np.full(slots, _NEVER, np.int64)
        self._occupants: dict[int, Entry] = {}
        cap = self._config.slots_per_source
        self._slots_per_source = slots + 1 if cap is None else cap
        self._openers, self._opened_ns = [0] * slots, [0] * slots
        self._opened = [0] * MAX_CONTRIBUTORS
        self._tombstones: list[tuple[int, int, Entry]] = []
        self._tombstones_made = 0
        self._free_rows = list(range(self._config.max_batch - 1, -1, -1))
        self._staged: deque[tuple[Entry, int, Reason, int]] = deque()
        self._earliest_ns = _NEVER
        self._high_water = 0
        self._past = Counters()

    def set_clique(self, job: int, epoch: int, round_number: int, expected: int, deadline_ns: int) -> None:
        check_clique(expected, deadline_ns)
        name = (job, epoch, round_number)
        if name in self._cliques:
            raise EngineError(f"round: (job, epoch, round) {name} is announced already; drop it first")
        if len(self._cliques) == _CAPABILITIES.max_rounds:
            raise EngineError(f"round: {_CAPABILITIES.max_rounds} rounds are announced; drop one first")
        self._cliques[name] = Clique(job, epoch, round_number, expected, deadline_ns)

    def drop_clique(self, job: int, epoch: int, round_number: int) -> Counters:
        clique = self._cliques.pop((job, epoch, round_number), None)
        if clique is None:
            raise EngineError(f"round: (job, epoch, round) {(job, epoch, round_number)} is not announced")
        for slot in sorted(entry.slot for entry in clique.entries.values() if entry.slot >= 0):
            self._release(slot)
            clique.counts.abandoned += 1
        for entry in clique.entries.values():
            self._ways_taken[entry.index_set] -= 1
            entry.until_ns = -1
        clique.entries.clear()
        self._past.include(clique.counts)
        return clique.counts

    def submit(self, headers: HeaderBatch, payloads: NDArray[np.int32], count: int, now_ns: int) -> int:
        self._forget_tombstones(now_ns)
        payloads = payloads.view(self._number)
        rows = zip(
            headers.job[:count].tolist(),
            headers.epoch[:count].tolist(),
            headers.round[:count].tolist(),
            headers.shard[:count].tolist(),
            headers.chunk[:count].tolist(),
            headers.value_count[:count].tolist(),
            headers.source[:count].tolist(),
            strict=True,
        )
        for i, (job, epoch, round_number, shard, chunk, value_count, source) in enumerate(rows):
            if not self._free_rows:
                return i
            clique = self._cliques.get((job, epoch, round_number))
            if clique is None:
                self._past.contributions += 1
                self._past.refused_epoch += 1
                headers.verdict[i] = Verdict.REFUSED_EPOCH
                continue
            clique.counts.contributions += 1
            if not clique.expected >> source & 1:
                clique.counts.refused_source += 1
                headers.verdict[i] = Verdict.REFUSED_SOURCE
            elif not 1 <= value_count <= self._config.values_per_chunk:
                clique.counts.refused_length += 1
                headers.verdict[i] = Verdict.REFUSED_LENGTH
            else:
                place = shard << 32 | chunk
                headers.verdict[i] = self.take(clique, place, source, payloads[i, :value_count], now_ns)
        return count

    def take(self, clique: Clique, place: int, source: int, values: _Numbers, now_ns: int) -> Verdict:
        """One contribution of an announced round from an expected contributor."""
        counts = clique.counts
        entry = clique.entries.get(place)
        if entry is None:
            entry = self.enter(clique, place, len(values))
            if entry is None:
                counts.bypassed_index += 1
                return Verdict.BYPASSED_COLLISION
        bit = 1 << source
        if entry.seen & bit:
            counts.duplicate += 1
            return Verdict.DUPLICATE
        if entry.value_count != len(values):
            counts.refused_length += 1
            return Verdict.REFUSED_LENGTH
        if entry.closed:
            entry.seen |= bit
            counts.late += 1
            return Verdict.BYPASSED_LATE if self._config.late_policy == "bypass" else Verdict.DROPPED_LATE
        if entry.seen | bit == clique.expected:
            self._complete(entry, bit, values, now_ns)
        elif entry.slot >= 0:
            total = self._pool[entry.slot, : entry.value_count]
            self.add(total, total, values)
            entry.in_sum |= bit
        else:
            capped = self._opened[source] >= self._slots_per_source
            if capped or not self._open_slot(entry, values, source, now_ns):
                entry.seen |= bit
                if not entry.until_ns:
                    self.bury(entry, now_ns)
                counts.bypassed_source += capped
                counts.bypassed_pool += not capped
                return Verdict.BYPASSED_COLLISION
        entry.seen |= bit
        counts.added += 1
        return Verdict.ADDED

    def add(self, total: _Numbers, left: _Numbers, right: _Numbers) -> None:
        """total = left + right, element by element; `total` may be `left`."""
        np.add(left, right, out=total)

    def enter(self, clique: Clique, place: int, value_count: int) -> Entry | None:
        """A new entry in the index, or None when the key's set has no free way."""
        key = (clique.job, clique.epoch, clique.round, place >> 32, place & 0xFFFFFFFF)
        key_set = index_set(self._config.hash_key, key, self._sets)
        if self._ways_taken[key_set] == INDEX_WAYS:
            return None
        self._ways_taken[key_set] += 1
        entry = clique.entries[place] = Entry(clique, place, key_set, value_count)
        return entry

    def _open_slot(self, entry: Entry, values: _Numbers, source: int, now_ns: int) -> bool:
        """Give the key a slot with these values in it; False when the pool is empty and the newcomer must bypass."""
        if not self._free_slots:
            if self._config.collision_policy != "evict-old":
                return False
            oldest = min(self._occupants, key=lambda slot: (self._deadlines[slot], slot))
            self._stage(self._occupants[oldest], Reason.COLLISION, self._pool[oldest])
            self._evict(oldest, now_ns)
        slot = self._free_slots.pop()
        self._pool[slot, : entry.value_count] = values
        entry.slot, entry.in_sum, entry.until_ns = slot, 1 << source, 0
        self._occupants[slot] = entry
        self._openers[slot], self._opened_ns[slot] = source, now_ns
        self._opened[source] += 1
        deadline_ns = now_ns + entry.clique.deadline_ns
        self._deadlines[slot] = deadline_ns
        self._earliest_ns = min(self._earliest_ns, deadline_ns)
        self._high_water = max(self._high_water, len(self._occupants))
        return True

    def _complete(self, entry: Entry, bit: int, values: _Numbers, now_ns: int) -> None:
        """Stage the whole sum; the contribution that completes a key goes straight there."""
        entry.in_sum |= bit
        row = self._stage(entry, Reason.COMPLETE, None)
        if entry.slot >= 0:
            self.add(row, self._pool[entry.slot, : entry.value_count], values)
            counts = entry.clique.counts
            counts.longest_wait_ns = max(counts.longest_wait_ns, now_ns - self._opened_ns[entry.slot])
            self._evict(entry.slot, now_ns)
        else:
            row[:] = values
            entry.closed = True
            self.bury(entry, now_ns)

    def _stage(self, entry: Entry, reason: Reason, values: _Numbers | None) -> _Numbers:
        """Queue a result for `poll`; returns its payload, filled from `values` if given."""
        row = self._free_rows.pop()
        self._staged.append((entry, row, reason, entry.in_sum))
        payload = self._staging[row, : entry.value_count]
        if values is not None:
            payload[:] = values[: entry.value_count]
        if reason is Reason.COMPLETE:
            entry.clique.counts.complete += 1
        else:
            entry.clique.counts.collision += 1
        return payload

    def _release(self, slot: int) -> Entry:
        entry = self._occupants.pop(slot)
        entry.slot = -1
        self._opened[self._openers[slot]] -= 1
        self._free_slots.append(slot)
        self._deadlines[slot] = _NEVER
        return entry

    def _evict(self, slot: int, now_ns: int) -> None:
        """Free a slot whose sum has been taken, and leave a tombstone."""
        entry = self._release(slot)
        entry.closed = True
        self.bury(entry, now_ns)

    def bury(self, entry: Entry, now_ns: int) -> None:
        """Remember the key for as long as its packets may still come."""
        entry.until_ns = now_ns + entry.clique.deadline_ns + self._config.reordering_ns
        heapq.heappush(self._tombstones, (entry.until_ns, self._tombstones_made, entry))
        self._tombstones_made += 1

    def _forget_tombstones(self, now_ns: int) -> None:
        while self._tombstones and self._tombstones[0][0] <= now_ns:
            until_ns, _, entry = heapq.heappop(self._tombstones)
            if entry.until_ns == until_ns:
                self._ways_taken[entry.index_set] -= 1
                del entry.clique.entries[entry.place]
                entry.until_ns = -1

    def poll(self, headers: HeaderBatch, payloads: NDArray[np.int32], now_ns: int) -> int:
        count = 0
        payloads = payloads.view(self._number)
        while self._staged and count < len(payloads):
            entry, row, reason, bitmap = self._staged.popleft()
            payloads[count, : entry.value_count] = self._staging[row, : entry.value_count]
            self._free_rows.append(row)
            _write_header(headers, count, entry, reason, bitmap)
            count += 1
        if now_ns < self._earliest_ns or count == len(payloads):
            return count
        due = np.flatnonzero(self._deadlines <= now_ns)
        for slot in due[np.argsort(self._deadlines[due], kind="stable")].tolist()[: len(payloads) - count]:
            entry = self._occupants[slot]
            payloads[count, : entry.value_count] = self._pool[slot, : entry.value_count]
            _write_header(headers, count, entry, Reason.TIMEOUT, entry.in_sum)
            entry.clique.counts.timeout += 1
            self._evict(slot, now_ns)
            count += 1
        self._earliest_ns = int(self._deadlines.min())
        return count

    def next_deadline_ns(self) -> int | None:
        return self._earliest_ns if self._occupants else None

    def flush(self, now_ns: int) -> None:
        taken = self._deadlines != _NEVER
        self._deadlines[taken] = np.minimum(self._deadlines[taken], now_ns)
        self._earliest_ns = int(self._deadlines.min())

    def stats(self) -> Stats:
        totals = replace(self._past)
        for clique in self._cliques.values():
            totals.include(clique.counts)
        return Stats(totals, len(self._occupants), self._high_water)

    def take_high_water(self) -> int:
        high_water, self._high_water = self._high_water, len(self._occupants)
        return high_water


def _write_header(headers: HeaderBatch, row: int, entry: Entry, reason: Reason, bitmap: int) -> None:
    clique = entry.clique
    headers.job[row] = clique.job
    headers.epoch[row] = clique.epoch
    headers.round[row] = clique.round
    headers.shard[row] = entry.place >> 32
    headers.chunk[row] = entry.place & 0xFFFFFFFF
    headers.value_count[row] = entry.value_count
    headers.reason[row] = reason
    headers.contributors[row] = bitmap.bit_count()
    headers.bitmap[row] = bitmap
