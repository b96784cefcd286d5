"""Counts packets that came after one that was sent later (RFC 4737), at each point."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from testbed.analyze.captures import Sightings
from testbed.analyze.flows import CONTRIBUTION, RESULT


class Order:
    """`reordered` has the counts, by flow and point. Packets that are sent again do not count."""

    def __init__(self) -> None:
        self.reordered: Counter[tuple[int, int]] = Counter()
        self._newest: dict[tuple[int, int], int] = {}
        self._first: dict[int, int] = {}

    def add(self, sightings: Sightings, kind: NDArray[np.int64], flow: NDArray[np.int64]) -> None:
        """Note sightings, those of each point in order; `kind` and `flow` are theirs."""
        counted = np.flatnonzero(np.isin(kind, (CONTRIBUTION, RESULT)))
        header = sightings.packets.header[counted]
        number = header["number"].astype(np.int64)
        group = flow[counted] << 32 | sightings.point[counted]
        order = np.argsort(group, kind="stable")
        begins = np.flatnonzero(np.diff(group[order], prepend=-1))
        for rows in np.split(order, begins[1:]):
            if not len(rows):
                continue
            at = counted[rows[0]]
            this, point = int(flow[at]), int(sightings.point[at])
            if kind[at] == CONTRIBUTION:
                position = header["round"][rows].astype(np.int64) << 32 | number[rows]
            else:
                # Serial numbers, counted from the first that was met.
                first = self._first.setdefault(this, int(number[rows[0]]))
                position = (number[rows] - first).astype(np.int32).astype(np.int64)
            newest = self._newest.get((this, point), int(position[0]))
            before = np.maximum.accumulate(np.concatenate([[newest], position]))
            self.reordered[this, point] += int((position < before[:-1]).sum())
            self._newest[this, point] = int(before[-1])
