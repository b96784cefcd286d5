"""Which packet was seen where: a table with a row for each packet on its way, and a summary of those that are done."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from testbed.analyze.captures import Sightings
from testbed.analyze.keyed import KeyedRows, grown

_HORIZON_NS = 5 * 10**9
"""A packet that was not seen for so long, undilated, is done."""

_HORIZON_ALONE_NS = 10**9 // 2
"""The same where no link was captured at both ends: then there are only duplicates to wait for."""
_ROWS_AT_ONCE = 1 << 16

TAIL, HEAD, LEFT_OUT = 1, 2, 4
"""Whether a packet may have been on its way when the captures ended (tail) or began (head); whether it is of a round of
which the captures have only a part."""

FACTS = np.dtype(
    [
        ("flow", "i4"),
        ("first_ns", "i8"),
        ("last_ns", "i8"),
        ("bitmap", "u8"),
        ("round", "u4"),
        ("chunk", "u4"),
        ("number", "u4"),
        ("shard", "u2"),
        ("source", "u1"),
        ("bad", "u1"),
    ]
)


@dataclass
class Pattern:
    """How often a flow's packets were seen at each point, and how many packets so. `when`: TAIL, HEAD and LEFT_OUT."""

    flow: int
    seen: NDArray[np.uint16]
    when: int
    bad: bool
    packets: int = 0
    rows: list[NDArray[np.void]] = field(default_factory=list)
    """The FACTS of these packets, unless the pattern is the usual one."""

    def facts(self) -> NDArray[np.void]:
        return np.concatenate(self.rows) if self.rows else np.empty(0, FACTS)


class Transits:
    """Packets between their first and last sighting. `patterns` grows as they are done, by flow and pattern."""

    def __init__(self, points: int, hops: Sequence[tuple[int, int]], time_dilation: float) -> None:
        """`points`: how many there are; `hops`: pairs of an outbound point and the inbound one across the link."""
        self._horizon_ns = int((_HORIZON_NS if hops else _HORIZON_ALONE_NS) * time_dilation)
        self._out = np.array([out for out, _ in hops], np.int64)
        self._in = np.array([inward for _, inward in hops], np.int64)
        self._rows = KeyedRows()
        self._facts = np.zeros(0, FACTS)
        self._seen = np.zeros((0, points), np.uint16)
        self._spread = np.random.default_rng(1).integers(1, 2**63, points, np.uint64)
        self._next_look_ns = 0
        self.longest_ns = 0
        """The longest time between two sightings of one packet."""
        self.patterns: dict[tuple[int, int, int, bool], Pattern] = {}

    def add(self, sightings: Sightings, flow: NDArray[np.int64], timed: NDArray[np.bool_]) -> None:
        """Note sightings; `timed` ones tell how long packets take (others may be sent again as they are)."""
        packets, header = sightings.packets, sightings.packets.header
        rows, fresh = self._rows.of(packets.identity)
        self._facts, self._seen = grown(self._facts, len(self._rows)), grown(self._seen, len(self._rows))
        facts = np.zeros(len(fresh), FACTS)
        facts["flow"] = flow[fresh]
        facts["first_ns"] = facts["last_ns"] = sightings.time_ns[fresh]
        facts["bad"] = packets.bad[fresh]
        for name in ("bitmap", "round", "chunk", "number", "shard", "source"):
            facts[name] = header[name][fresh]
        self._facts[rows[fresh]] = facts
        self._seen[rows[fresh]] = 0
        np.add.at(self._seen.reshape(-1), rows * self._seen.shape[1] + sightings.point, 1)
        np.minimum.at(self._facts["first_ns"], rows, sightings.time_ns)
        np.maximum.at(self._facts["last_ns"], rows, sightings.time_ns)
        if timed.any():
            spans = self._facts["last_ns"][rows[timed]] - self._facts["first_ns"][rows[timed]]
            self.longest_ns = max(self.longest_ns, int(spans.max()))

    def finish(self, now_ns: int, left_out: NDArray[np.int64]) -> None:
        """Sum up the packets that are done at this time of the captures: all files have come so far.

        `left_out`: the rounds of which the captures lack the beginning or the end.
        """
        if now_ns < self._next_look_ns:
            return
        self._next_look_ns = now_ns + self._horizon_ns // 10
        count = len(self._rows)
        done = self._facts["last_ns"][:count] < now_ns - self._horizon_ns
        if done.any():
            self._sum_up(self._facts[:count][done], self._seen[:count][done], left_out)
            self._facts, self._seen = self._facts[:count][~done], self._seen[:count][~done]
            self._rows.keep(~done)

    def open_rounds(self, end_ns: int) -> NDArray[np.int64]:
        """The rounds of packets that may have been on their way at the end."""
        count = len(self._rows)
        facts, seen = self._facts[:count], self._seen[:count]
        open_ = (facts["last_ns"] + self.longest_ns >= end_ns) & (seen[:, self._out] > seen[:, self._in]).any(axis=1)
        return facts["round"][open_].astype(np.int64)

    def finish_all(self, start_ns: int, end_ns: int, left_out: NDArray[np.int64]) -> None:
        """Sum up all; the captures began and ended at these times."""
        count = len(self._rows)
        facts = self._facts[:count]
        when = np.where(facts["last_ns"] + self.longest_ns >= end_ns, TAIL, 0)
        when |= np.where(facts["first_ns"] - self.longest_ns <= start_ns, HEAD, 0)
        self._sum_up(facts, self._seen[:count], left_out, when)

    def _sum_up(
        self,
        facts: NDArray[np.void],
        seen: NDArray[np.uint16],
        left_out: NDArray[np.int64],
        when: NDArray[np.int64] | None = None,
    ) -> None:
        for first in range(0, len(facts), _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            flags = np.zeros(len(facts[rows]), np.int64) if when is None else when[rows]
            flags = flags | np.where(np.isin(facts["round"][rows], left_out), LEFT_OUT, 0)
            self._sum_up_rows(facts[rows], seen[rows], flags)

    def _sum_up_rows(self, facts: NDArray[np.void], seen: NDArray[np.uint16], when: NDArray[np.int64]) -> None:
        pattern_hash = seen @ self._spread
        key = pattern_hash * np.uint64(16) + (facts["bad"].astype(np.uint64) * np.uint64(8) + when.astype(np.uint64))
        key += facts["flow"].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        _, first, inverse, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        order = np.argsort(inverse, kind="stable")
        groups = np.split(order, np.cumsum(counts)[:-1])
        for row, group in zip(first.tolist(), groups, strict=True):
            flow, bad = int(facts["flow"][row]), bool(facts["bad"][row])
            name = (flow, int(pattern_hash[row]), int(when[row]), bad)
            pattern = self.patterns.get(name)
            if pattern is None:
                pattern = self.patterns[name] = Pattern(flow, seen[row].copy(), int(when[row]), bad)
            pattern.packets += len(group)
            if bad or self._is_odd(seen[row]):
                pattern.rows.append(facts[group])

    def _is_odd(self, seen: NDArray[np.uint16]) -> bool:
        """Whether something happened to packets that were seen so on a link."""
        return bool((seen[self._out] != seen[self._in]).any())
