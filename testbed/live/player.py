"""Plays a run's scenario, and those changes of policy that its schedule has at a time."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from testbed.errors import RunFailed, TestbedError
from testbed.live.links import LiveLinks
from testbed.live.scenario import Event
from testbed.run.processes import Fleet
from testbed.run.rundir import RunDirectory
from testbed.scale import Scale


class Player:
    """Its clock starts with the first round and goes on during pauses."""

    def __init__(
        self, scenario: Sequence[Event], links: LiveLinks, fleet: Fleet, run_dir: RunDirectory, scale: Scale
    ) -> None:
        self._scenario = scenario
        self._links = links
        self._fleet = fleet
        self._run_dir = run_dir
        self._scale = scale
        self._played = 0
        self._over = False

    def begin(self, start_ns: int, timed: Sequence[tuple[float, Callable[[], object]]]) -> None:
        """The first round starts. `timed`: what else to call, at ms after that, undilated."""
        for event in self._scenario:
            due_ns = start_ns + self._scale.emulated_ns(event.at_ms)
            self._fleet.call_at(due_ns, partial(self._play, event, due_ns))
        for at_ms, call in timed:
            self._fleet.call_at(start_ns + self._scale.emulated_ns(at_ms), partial(self._unless_over, call))

    def end(self) -> list[str]:
        """No more rounds; returns warnings."""
        self._over = True
        missed = len(self._scenario) - self._played
        return [f"{missed} of {len(self._scenario)} events of the scenario lie after the end of the run"] * bool(missed)

    def _unless_over(self, call: Callable[[], object]) -> None:
        if not self._over:
            call()

    def _play(self, event: Event, due_ns: int) -> None:
        if self._over:
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
