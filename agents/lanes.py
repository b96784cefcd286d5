"""Several narrow integers in one 32-bit word, summed by whoever sums words.

The word of q0, q1, … in lanes of w bits is q0 + q1·2^w + …, as an integer. Sums of words are then the words of the
lanes' sums, as long as every lane's sum fits w bits: that is what the headroom is for. Edges and engines need not know.
"""

import numpy as np
from numpy.typing import NDArray

WORD_BITS = 32


def word_count(values: int, lanes: int) -> int:
    """How many words carry `values` values; the last one may have lanes to spare."""
    return -(-values // lanes)


def pack(integers: NDArray[np.int32], lanes: int) -> NDArray[np.int32]:
    """The words of `integers`, value i in lane i mod `lanes` of word i div `lanes`."""
    if lanes == 1:
        return integers
    padded = np.zeros((word_count(len(integers), lanes), lanes), np.int32)
    padded.reshape(-1)[: len(integers)] = integers
    words = padded[:, lanes - 1].copy()
    for lane in reversed(range(lanes - 1)):
        words <<= WORD_BITS // lanes
        words += padded[:, lane]
    return words


def unpack(words: NDArray[np.int32], lanes: int, values: int) -> NDArray[np.int32]:
    """The `values` values, or their sums, that `words` carry."""
    if lanes == 1:
        return words[:values]
    bits = WORD_BITS // lanes
    unpacked = np.empty((len(words), lanes), np.int32)
    rest = words.astype(np.int64)
    for lane in range(lanes):
        # The lowest lane with its sign; what it took from the lanes above is given back.
        unpacked[:, lane] = (rest + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
        rest = (rest - unpacked[:, lane]) >> bits
    return unpacked.reshape(-1)[:values]
