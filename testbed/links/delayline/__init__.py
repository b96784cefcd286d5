"""Link kind `delayline`: a program of its own carries the frames, for kernels that cannot delay them.

Start with kind.py; the C sources beside it are the program, main.c first.
"""

from testbed.links.delayline.kind import DelayLine

__all__ = ["DelayLine"]
