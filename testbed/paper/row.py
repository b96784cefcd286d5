"""One line of the comparison."""

from dataclasses import dataclass
from typing import Any

Value = float | bool | None


@dataclass(frozen=True)
class Row:
    """A quantity as published, as planned and as measured; None where there is no such figure.

    `fitted`: link delays and payload were chosen so that the planned value is the published one (or it follows from
    such a value alone), so that their agreement shows nothing. `within`: the deviation that is allowed. `failure`: why
    it was not measured, although it should have been.
    """

    quantity: str
    published: Value = None
    planned: Value = None
    measured: Value = None
    fitted: bool = False
    note: str = ""
    within: float | None = None
    failure: str = ""

    @property
    def ok(self) -> bool:
        """Whether what was planned is what was measured, as far as that is asked."""
        if self.failure:
            return False
        if isinstance(self.planned, bool):
            return self.planned == self.measured
        if self.within is None or self.planned is None:
            return True
        return self.deviation is not None and abs(self.deviation) <= self.within

    @property
    def deviation(self) -> float | None:
        """How far the measured value is off the planned one, as a share of it."""
        if isinstance(self.planned, bool) or isinstance(self.measured, bool):
            return None
        if self.planned is None or self.measured is None or not self.planned:
            return None
        return self.measured / self.planned - 1

    def to_json(self) -> dict[str, Any]:
        return {
            "quantity": self.quantity,
            "published": self.published,
            "planned": self.planned,
            "measured": self.measured,
            "deviation": self.deviation,
            "fitted": self.fitted,
            "ok": self.ok,
            "note": self.note,
            "failure": self.failure,
        }
