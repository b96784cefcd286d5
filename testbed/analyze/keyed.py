"""Rows of tables that are found by a 64-bit key."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Column = TypeVar("Column", bound=NDArray)  # type: ignore[type-arg]
_LEAST_ROWS = 1024


class KeyedRows:
    """Gives each key a row, from 0 on in the order of their arrival."""

    def __init__(self) -> None:
        self._keys = np.empty(0, np.uint64)  # ascending
        self._rows = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._keys)

    def of(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The row of each key, and the positions in `keys` of the first ones of those that are new."""
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        at = np.searchsorted(self._keys, distinct)
        known = np.zeros(len(distinct), bool)
        inside = at < len(self._keys)
        known[inside] = self._keys[at[inside]] == distinct[inside]
        fresh: NDArray[np.int64] = first[~known]
        if len(fresh):
            rows = np.arange(len(self._keys), len(self._keys) + len(fresh))
            self._keys = np.insert(self._keys, at[~known], distinct[~known])
            self._rows = np.insert(self._rows, at[~known], rows)
        return self._rows[np.searchsorted(self._keys, distinct)][inverse], fresh

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Forget the other rows; those that are kept close up."""
        renumbered = np.cumsum(kept) - 1
        mine = kept[self._rows]
        self._keys, self._rows = self._keys[mine], renumbered[self._rows[mine]]


def grown(column: Column, rows: int) -> Column:
    """The column, with room for so many rows."""
    if rows <= len(column):
        return column
    larger = np.zeros((max(len(column) * 3 // 2, rows, _LEAST_ROWS), *column.shape[1:]), column.dtype)
    larger[: len(column)] = column
    return larger  # type: ignore[return-value]
