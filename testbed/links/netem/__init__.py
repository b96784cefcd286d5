"""Link kind `netem`: the kernel delays and serialises the frames.

Start with kind.py; docs/links-netem.md says why it is made as it is.
"""

from testbed.links.netem.kind import Netem

__all__ = ["Netem"]
