from typing import Any

import numpy as np
from numpy.typing import NDArray

def receive(fd: int, rows: NDArray[np.uint8], stride: int, records: NDArray[Any], count: int, /) -> int: ...
def seal(rows: NDArray[np.uint8], stride: int, records: NDArray[Any], first: int, count: int, /) -> None: ...
def send(
    fd: int, rows: NDArray[np.uint8], stride: int, records: NDArray[Any], first: int, count: int, port: int, /
) -> int: ...
