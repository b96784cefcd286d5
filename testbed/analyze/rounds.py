"""When each round was seen first, to tell those that were going on when the captures began."""

import numpy as np
from numpy.typing import NDArray

from testbed.analyze.captures import Sightings
from testbed.analyze.flows import CONTRIBUTION, RESULT

_MARGIN_NS = 100_000_000
"""The longest pause within a round that is taken into account."""


class Rounds:
    """Notes the rounds of contributions and results."""

    def __init__(self) -> None:
        self._first_ns: dict[int, int] = {}
        self._sent: set[int] = set()

    def add(self, sightings: Sightings, kind: NDArray[np.int64]) -> None:
        """Note sightings; `kind` has their classes."""
        counted = np.isin(kind, (CONTRIBUTION, RESULT))
        rounds, inverse = np.unique(sightings.packets.header["round"][counted], return_inverse=True)
        first = np.full(len(rounds), np.iinfo(np.int64).max)
        np.minimum.at(first, inverse, sightings.time_ns[counted])
        for number, first_ns in zip(rounds.tolist(), first.tolist(), strict=True):
            self._first_ns[number] = min(first_ns, self._first_ns.get(number, first_ns))
        self._sent.update(np.unique(sightings.packets.header["round"][kind == CONTRIBUTION]).tolist())

    def begun_by(self, start_ns: int | None, longest_ns: int) -> NDArray[np.int64]:
        """The rounds that may have begun before the captures did, at `start_ns` (None: that is not known).

        `longest_ns`: how long packets are on their way. An edge gives up a sum long after that, so a round of which
        only results were seen, while others have contributions, counts as well.
        """
        if start_ns is None:
            return np.empty(0, np.int64)
        until_ns = start_ns + longest_ns + _MARGIN_NS
        begun = {number for number, first in self._first_ns.items() if first <= until_ns}
        if self._sent:
            begun |= self._first_ns.keys() - self._sent
        return np.array(sorted(begun), np.int64)
