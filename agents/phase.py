"""What a host does in one place of the schedule."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Phase:
    """What this host does in one place of the schedule; no group: it sends nothing.

    `group` names the tree, `source` is the address to send from; `destinations` is the group itself, or each receiver's
    edge.
    """

    group: str | None
    source: str | None
    destinations: tuple[str, ...]
    offset_ns: int
    duration_ns: int
    expected: int

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Self:
        """From one of the `phases` of an `epoch` message. Raises KeyError, TypeError."""
        return cls(**{**message, "destinations": tuple(message["destinations"])})
