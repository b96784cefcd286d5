"""What a run shows to its users while it goes on, from its first second to its last."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.live.server import Command
from testbed.run.conductor import Conductor
from testbed.run.settings import RunSettings

# What can be done once there is what it is done to.
_LATER = (
    *("link_show", "link_set", "policy_show", "policy_set", "pause", "resume", "stop"),
    *("capture_start", "capture_stop"),
)


def first_status(settings: RunSettings, run_id: str, run_dir: Path) -> dict[str, Any]:
    """What is known from the first second on."""
    return {
        "run": run_id,
        "topology": settings.topology,
        "policy": settings.policy,
        "epoch": 0,
        "round": None,
        "rounds": settings.rounds,
        "last": None,
        "links_kind": None,
        "multicast_plane": None,
        "run_dir": str(run_dir),
    }


class LiveRun:
    """The state of a run, and what may be done to it; read and changed by several threads."""

    def __init__(self, about: Mapping[str, Any], conductor: Conductor) -> None:
        """`about`: the fields of the answer to `status` that are known by now; later ones come by `learn`."""
        self._lock = threading.Lock()
        self._about = dict(about)
        self._conductor = conductor
        self._stage = "planning"
        self.commands: dict[str, Command] = {"status": self._status, **dict.fromkeys(_LATER, self._not_yet)}
        """The commands of the control socket; what can be done grows with what there is."""

    def enter(self, stage: str) -> None:
        """Another part of the run begins: building, running, finishing."""
        self._stage = stage

    def learn(self, **about: Any) -> None:
        """Change fields of the answer to `status`."""
        with self._lock:
            self._about |= about

    def _not_yet(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        raise TestbedError(f"the run is still {self._stage}: try again when it is running")

    def _status(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        state = self._stage
        if state == "running" and self._conductor.pausing:
            state = "paused" if self._conductor.holding else "pausing"
        with self._lock:
            return {**self._about, "state": state, "last_round": self._conductor.last_round}
