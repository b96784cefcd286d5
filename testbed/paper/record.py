"""The document of the comparison, on disk as it comes: what has been measured is kept, however it ends."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from testbed.paper.agreement import Agreement
from testbed.paper.comparison import Planned, rows
from testbed.paper.curves import Curve
from testbed.paper.methods import Method
from testbed.paper.outcome import Outcome
from testbed.paper.row import Row
from testbed.paper.statements import statements

FILE = "paper.json"


class Record:
    """Everything that is known so far; each addition is written to `paper.json` in the directory."""

    def __init__(self, directory: Path, topology: str, planned: Planned) -> None:
        self.directory = directory
        self.outcomes: dict[str, Outcome] = {}
        self.methods: list[Method] = []
        self.curves: list[Curve] = []
        self.agreements: list[Agreement] = []
        self.failures: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self._topology = topology
        self._planned = planned
        self._complete = False

    def outcome(self, key: str, outcome: Outcome) -> None:
        self.outcomes[key] = outcome
        if outcome.failed:
            self.fail(key, outcome.trouble)
        elif outcome.summary is None:
            self.refuse(key, outcome.trouble)
        self.write()

    def curve(self, curve: Curve) -> None:
        self.curves.append(curve)
        self.write()

    def agreement(self, agreement: Agreement) -> None:
        self.agreements.append(agreement)
        self.write()

    def refuse(self, what: str, reason: str) -> None:
        """It cannot be done here."""
        self.refused[what] = reason
        self.write()

    def fail(self, what: str, trouble: str) -> None:
        """It should have worked, and did not."""
        self.failures[what] = trouble
        self.write()

    def finish(self) -> None:
        self._complete = True
        self.write()

    @property
    def rows(self) -> list[Row]:
        return rows(self._planned, self.outcomes)

    @property
    def ok(self) -> bool:
        """Whether all was measured, and is what was planned."""
        agreed = all(each.equal for each in self.agreements)
        return self._complete and not self.failures and agreed and all(row.ok for row in self.rows)

    def document(self) -> dict[str, Any]:
        """As docs/paper.md says."""
        return {
            "topology": self._topology,
            "complete": self._complete,
            "ok": self.ok,
            "rows": [row.to_json() for row in self.rows],
            "runs": [{"run": key, **_run(outcome)} for key, outcome in self.outcomes.items()],
            "curves": [asdict(curve) for curve in self.curves],
            "agreements": [asdict(each) for each in self.agreements],
            "statements": statements(self.curves, self.agreements, self.methods),
            "not_run": {**self.refused, **self.failures},
            "run_dir": str(self.directory.resolve()),
        }

    def write(self) -> None:
        """Raises OSError."""
        unfinished = self.directory / f".{FILE}"
        unfinished.write_text(json.dumps(self.document(), indent=2) + "\n", encoding="utf-8")
        unfinished.rename(self.directory / FILE)


def _run(outcome: Outcome) -> Mapping[str, Any]:
    return {"attempts": [asdict(attempt) for attempt in outcome.attempts], "trouble": outcome.trouble}
