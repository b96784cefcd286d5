"""The environment in which training is the same to the bit: whoever starts a trainer or the reference sets it."""

import os
import sys

ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""One thread for matrix products: with several, the order of additions depends on how many there are."""


def ensure_pinned() -> None:
    """Start this program again in the pinned environment, unless it already runs in it.

    numpy reads these variables when it is imported, so setting them now would be too late.
    """
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        # By its full path: a bare name could find another interpreter on PATH, without the packages.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **ENVIRONMENT})
