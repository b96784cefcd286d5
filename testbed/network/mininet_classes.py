"""Mininet's classes, loaded without setuptools.

Mininet has Python's distutils compare versions. In a virtual environment setuptools takes the place of that, and loads
all of itself: an eighth of the time that a run takes to load.
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _plain_distutils() -> Iterator[None]:
    finders = list(sys.meta_path)
    if sys.version_info < (3, 12):  # later ones have none of their own
        sys.meta_path[:] = [finder for finder in finders if type(finder).__module__ != "_distutils_hack"]
    try:
        yield
    finally:
        sys.meta_path[:] = finders


with _plain_distutils(), warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # distutils is; Debian's mininet has no other
    from mininet.link import Intf
    from mininet.link import Link as MininetLink
    from mininet.net import Mininet
    from mininet.node import Node

__all__ = ["Intf", "Mininet", "MininetLink", "Node"]
