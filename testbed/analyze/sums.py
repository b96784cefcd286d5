"""What became of contributions at the receiving islands: arrived at the edge, summed, delivered to the hosts."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggregator.wire.packet import MAX_CONTRIBUTORS
from testbed.analyze.captures import Captures, Sightings
from testbed.analyze.flows import CONTRIBUTION, FETCHED, REPAIR, RESULT
from testbed.analyze.keyed import KeyedRows, grown

_HORIZON_NS = 10 * 10**9
"""A chunk of which nothing was seen for so long, undilated, is done."""
_COLUMNS = ("arrived", "summed", "delivered", "repaired")
_ROW = np.dtype(
    [
        ("island", "i8"),
        ("round", "i8"),
        ("last_ns", "i8"),
        ("redundant", "i8"),
        ("merged", "u8"),
        *((name, "u8") for name in _COLUMNS),
    ]
)


@dataclass
class SourceCounts:
    """Contributions of one source to one island, in chunks. What is repaired is not in `delivered`.

    `absorbed` arrived and are in no result; `undelivered` are in results none of which reached the host unrepaired;
    `unrepaired` are those of them that no repair brought either, `made_up` are in results and never arrived.
    """

    arrived: int = 0
    summed: int = 0
    delivered: int = 0
    repaired: int = 0
    absorbed: int = 0
    undelivered: int = 0
    unrepaired: int = 0
    made_up: int = 0


class Sums:
    """One row for each chunk of each receiving island on its way; `counts` sums up those that are done."""

    def __init__(self, captures: Captures) -> None:
        self._horizon_ns = int(_HORIZON_NS * captures.time_dilation)
        points = captures.points
        islands = sorted({point.island for point in points})
        self._island = np.array([islands.index(point.island) for point in points], np.int64)
        self._islands = islands
        inward = np.array([not point.outbound for point in points], bool)
        edge, host = (np.array([getattr(point, name) for point in points], bool) for name in ("is_edge", "is_host"))
        from_router = np.array([point.kind == "wire" for point in points], bool)
        self._arrival = inward & edge & from_router
        self._departure = ~inward & edge & ~from_router
        self._delivery = inward & host
        self._rows = KeyedRows()
        self._table = np.zeros(0, _ROW)
        self._next_look_ns = 0
        self.counts: dict[tuple[int, str], SourceCounts] = {}
        """By source, a contributor id, and receiving island."""
        self.redundant: Counter[str] = Counter()
        """Packets that came to an island's hosts with a contribution that was there already."""

    def add(self, sightings: Sightings, kind: NDArray[np.int64]) -> None:
        """Note sightings; `kind` has their classes."""
        at = sightings.point
        arrived = (kind == CONTRIBUTION) & self._arrival[at]
        summed = (kind == RESULT) & self._departure[at]
        delivered = (kind == RESULT) & self._delivery[at]
        repaired = ((kind == RESULT + REPAIR) | (kind == FETCHED)) & self._delivery[at]
        chosen = np.flatnonzero((arrived | summed | delivered | repaired) & ~sightings.packets.bad)
        if not len(chosen):
            return
        header = sightings.packets.header[chosen]
        island = self._island[at[chosen]]
        key = island.astype(np.uint64)
        for name in ("job", "epoch", "round", "shard", "chunk"):
            key = (key ^ key >> np.uint64(31)) * np.uint64(0x9E3779B97F4A7C15) + header[name].astype(np.uint64)
        key = (key ^ key >> np.uint64(32)) * np.uint64(0xD6E8FEB86659FD93)
        rows, fresh = self._rows.of(key)
        self._table = grown(self._table, len(self._rows))
        self._table[rows[fresh]] = np.zeros(1, _ROW)
        self._table["island"][rows] = island
        self._table["round"][rows] = header["round"]
        np.maximum.at(self._table["last_ns"], rows, sightings.time_ns[chosen])
        bits = header["bitmap"].astype(np.uint64)
        for name, mask in zip(_COLUMNS, (arrived, summed, delivered, repaired), strict=True):
            mine = mask[chosen]
            np.bitwise_or.at(self._table[name], rows[mine], bits[mine])
        came = (delivered | repaired)[chosen]
        self._merge(rows[came], bits[came])

    def _merge(self, rows: NDArray[np.int64], bits: NDArray[np.uint64]) -> None:
        """Merge packets that come to hosts, in this order, as these do: one that overlaps is dropped whole."""
        merged, redundant = self._table["merged"], self._table["redundant"]
        _, first, counts = np.unique(rows, return_index=True, return_counts=True)
        alone = first[counts == 1]
        plain = alone[merged[rows[alone]] & bits[alone] == 0]
        merged[rows[plain]] |= bits[plain]
        others = np.ones(len(rows), bool)
        others[plain] = False
        for row, new in zip(rows[others].tolist(), bits[others], strict=True):
            if merged[row] & new:
                redundant[row] += 1
            else:
                merged[row] |= new

    def finish(self, now_ns: int, left_out: NDArray[np.int64]) -> None:
        """Sum up the chunks that are done at this time of the captures, but for those of rounds to be left out."""
        if now_ns < self._next_look_ns:
            return
        self._next_look_ns = now_ns + self._horizon_ns // 10
        table = self._table[: len(self._rows)]
        done = table["last_ns"] < now_ns - self._horizon_ns
        if done.any():
            self._sum_up(table[done], left_out)
            self._table = table[~done]
            self._rows.keep(~done)

    def open_rounds(self, end_ns: int, longest_ns: int) -> NDArray[np.int64]:
        """The rounds of chunks that were not done shortly before the end."""
        table = self._table[: len(self._rows)]
        delivered = table["delivered"] | table["repaired"]
        open_ = (table["arrived"] & ~table["summed"]) | (table["summed"] & ~delivered)
        rounds: NDArray[np.int64] = table["round"][(open_ != 0) & (table["last_ns"] + longest_ns >= end_ns)]
        return rounds

    def finish_all(self, left_out: NDArray[np.int64]) -> None:
        """Sum up all, but for the rounds to be left out."""
        self._sum_up(self._table[: len(self._rows)], left_out)

    def _sum_up(self, table: NDArray[np.void], left_out: NDArray[np.int64]) -> None:
        table = table[~np.isin(table["round"], left_out)]
        for island in np.unique(table["island"]).tolist():
            mine = table[table["island"] == island]
            self.redundant[self._islands[island]] += int(mine["redundant"].sum())
            arrived, summed, delivered, repaired = (mine[name] for name in _COLUMNS)
            undelivered = summed & ~delivered
            columns = {
                "arrived": arrived,
                "summed": summed,
                "delivered": delivered,
                "repaired": repaired & ~delivered,
                "absorbed": arrived & ~summed,
                "undelivered": undelivered,
                "unrepaired": undelivered & ~repaired,
                "made_up": summed & ~arrived,
            }
            present = int(np.bitwise_or.reduce(arrived | summed | delivered | repaired))
            for source in (bit for bit in range(MAX_CONTRIBUTORS) if present >> bit & 1):
                counts = self.counts.setdefault((source, self._islands[island]), SourceCounts())
                for name, bits in columns.items():
                    found = int((bits >> np.uint64(source) & np.uint64(1)).sum())
                    setattr(counts, name, getattr(counts, name) + found)
