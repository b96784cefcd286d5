"""Buffers for many datagrams: one row each, with the payload where a vector unit likes it."""

import numpy as np
from numpy.typing import NDArray

from aggregator.wire.packet import HEADER_BYTES, VALUE_BYTES

_ALIGNMENT = 64


def datagram_rows(count: int, values_per_chunk: int) -> NDArray[np.uint8]:
    """`count` buffers for datagrams, aligned, each a little longer than the longest legal one."""
    stride = (HEADER_BYTES + VALUE_BYTES * values_per_chunk + _ALIGNMENT) // _ALIGNMENT * _ALIGNMENT + _ALIGNMENT
    memory = np.zeros(count * stride + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + count * stride].reshape(count, stride)


def payload_rows(rows: NDArray[np.uint8], values_per_chunk: int) -> NDArray[np.int32]:
    """The payloads inside `datagram_rows`, shape (count, values_per_chunk); the same memory."""
    return rows[:, HEADER_BYTES : HEADER_BYTES + VALUE_BYTES * values_per_chunk].view("<i4")
