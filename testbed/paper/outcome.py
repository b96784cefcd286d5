"""What became of one experiment, and of each attempt at it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Attempt:
    """One try: how long it took, how far off the plan it was (as a share), in how many rounds the machine kept up.

    `deviation` is None where there is no plan, `untrusted_rounds` where nobody knows. `trouble`: why it has no result.
    """

    time_dilation: float
    seconds: float
    run_dir: str
    deviation: float | None = None
    rounds: int = 0
    untrusted_rounds: int | None = 0
    trouble: str = ""


@dataclass(frozen=True)
class Outcome:
    """The summary that counts, or why there is none: what was refused cannot be, what `failed` should have worked.

    `note`: what is to be known about how it was measured.
    """

    summary: Summary | None
    trouble: str = ""
    failed: bool = False
    note: str = ""
    attempts: tuple[Attempt, ...] = ()

    @property
    def failure(self) -> str:
        return self.trouble if self.failed else ""

    def measured(self, *path: str) -> Any:
        """A figure of the summary's `measured`; None without a summary."""
        return self._figure("measured", *path)

    def predicted(self, *path: str) -> Any:
        """A figure of the summary's `predicted`; None without a summary."""
        return self._figure("predicted", *path)

    def _figure(self, *path: str) -> Any:
        value: Any = self.summary
        for name in path:
            value = None if value is None else value.get(name)
        return value
