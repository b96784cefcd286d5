"""What a run does for its users while it runs: answers their commands, and plays its scenario."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from testbed.errors import RunFailed, TestbedError
from testbed.live.links import LiveLinks
from testbed.live.scenario import Event
from testbed.live.server import Command
from testbed.run.processes import Fleet
from testbed.run.rundir import RunDirectory
from testbed.scale import Scale


class LiveRun:
    """The state of a run as others may see it, and what they may do to it."""

    def __init__(
        self,
        about: Mapping[str, Any],
        links: LiveLinks,
        scenario: Sequence[Event],
        fleet: Fleet,
        run_dir: RunDirectory,
        scale: Scale,
    ) -> None:
        """`about`: what never changes in the answer to `status`."""
        self._about = about
        self._links = links
        self._scenario = scenario
        self._fleet = fleet
        self._run_dir = run_dir
        self._scale = scale
        self._progress: dict[str, Any] = {"state": "building", "epoch": 0, "round": None}
        self._played = 0

    def commands(self) -> dict[str, Command]:
        """The commands of the control socket."""
        return {"status": self._status, "link_show": self._link_show, "link_set": self._link_set}

    def round_started(self, number: int, epoch: int, start_ns: int) -> None:
        """A round, counted from 0, starts at `start_ns`; with the first one the scenario begins."""
        self._progress = {"state": "running", "epoch": epoch, "round": number}
        if number == 0:
            for event in self._scenario:
                due_ns = start_ns + self._scale.emulated_ns(event.at_ms)
                self._fleet.call_at(due_ns, partial(self._play, event, due_ns))

    def rounds_done(self) -> list[str]:
        """No more rounds; returns warnings."""
        self._progress["state"] = "finishing"
        missed = len(self._scenario) - self._played
        return [f"{missed} of {len(self._scenario)} events of the scenario lie after the end of the run"] * bool(missed)

    def _play(self, event: Event, due_ns: int) -> None:
        if self._progress["state"] != "running":
            return
        began_ns = time.monotonic_ns()
        try:
            in_force = self._links.set(event.setting.link, event.setting.values)
        except TestbedError as error:
            raise RunFailed(f"scenario event {event.number}: {error}") from error
        self._played += 1
        self._run_dir.event(
            "scenario",
            number=event.number,
            at_ms=event.at_ms,
            late_ms=self._scale.undilated_ms(began_ns - due_ns),
            link=event.setting.link,
            values=dict(event.setting.values),
            links=in_force,
        )

    def _status(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._about, **self._progress}

    def _link_show(self, request: Mapping[str, Any]) -> dict[str, Any]:
        name = request.get("link")
        if name is not None and not isinstance(name, str):
            raise TestbedError(f"link: {name!r} is no name")
        return {"links": self._links.show(name)}

    def _link_set(self, request: Mapping[str, Any]) -> dict[str, Any]:
        name, values = request.get("link"), request.get("values")
        if not isinstance(name, str) or not isinstance(values, dict):
            raise TestbedError('link_set wants a "link", a text, and "values", an object')
        in_force = self._links.set(name, values)
        self._run_dir.event("link_set", link=name, values=values, links=in_force)
        return {"links": in_force}
