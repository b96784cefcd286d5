"""An example engine: the reference's rules, and a sum of its own, as a device with 16-bit adders would make it."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.engine import Capabilities
from aggregator.engines.numpy_engine import NumpyEngine


class HalvesEngine(NumpyEngine):
    """Adds the low halves, then the high halves with the carry."""

    def capabilities(self) -> Capabilities:
        return replace(super().capabilities(), name="halves", kind="rtl", number_formats=(0,))

    def add(self, total: NDArray[Any], left: NDArray[Any], right: NDArray[Any]) -> None:
        a, b = left.view(np.uint32), right.view(np.uint32)
        low = (a & 0xFFFF) + (b & 0xFFFF)
        high = (a >> 16) + (b >> 16) + (low >> 16)
        total[:] = (high << 16 | low & 0xFFFF).view(np.int32)
