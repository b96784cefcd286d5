"""What a run shows to its users while it goes on, from its first second to its last."""

import threading
from collections.abc import Mapping
from typing import Any

from testbed.live.server import Command
from testbed.run.conductor import Conductor


class LiveRun:
    """The state of a run, and what may be done to it; read and changed by several threads."""

    def __init__(self, about: Mapping[str, Any], conductor: Conductor) -> None:
        """`about`: the fields of the answer to `status` that are known by now; later ones come by `learn`."""
        self._lock = threading.Lock()
        self._about = dict(about)
        self._conductor = conductor
        self._stage = "planning"
        self.commands: dict[str, Command] = {"status": self._status}
        """The commands of the control socket; what can be done grows with what there is."""

    def enter(self, stage: str) -> None:
        """Another part of the run begins: building, running, finishing."""
        self._stage = stage

    def learn(self, **about: Any) -> None:
        """Change fields of the answer to `status`."""
        with self._lock:
            self._about |= about

    def _status(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        state = self._stage
        if state == "running" and self._conductor.pausing:
            state = "paused" if self._conductor.holding else "pausing"
        with self._lock:
            return {**self._about, "state": state, "last_round": self._conductor.last_round}
