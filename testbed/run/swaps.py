"""Policy swaps: asked for by a command, by the run's schedule or by links that changed; planned and made ready beside
the rounds, one after the other, in a thread of their own; in force from the next boundary on.

A swap that cannot be planned or made ready is given up, with the reason, and the policy before it goes on.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from scheduler.plan import Plan
from scheduler.topology import Topology
from testbed.errors import TestbedError
from testbed.run.epochs import Epochs, NetworkChanged
from testbed.run.planning import TIME_LIMIT_S, Planner, PlanRequest
from testbed.run.processes import Fleet
from testbed.run.settings import RunSettings

_LOOK_S = 0.01
_SOON_ROUNDS = 2


@dataclass(frozen=True)
class Swap:
    """One swap as it is now. Rounds are counted from 0, times are wall-clock ms.

    `state` goes from waiting over planning, scheduled, due, installing and ready to `in force`, or to `failed` with an
    `error`. `cause`: command, schedule or links. `asked_in_round`: the last round that had started; None: none had.
    `at_round`: the round from which on it shall be in force; None: as soon as it is ready. `steps_ms`: what took how
    long, in order.
    """

    number: int
    policy: str
    memory_gb: float
    cause: str
    at_round: int | None
    asked_in_round: int | None
    asked_ns: int
    state: str = "waiting"
    round_time_ms: float | None = None
    steps_ms: Mapping[str, float] = field(default_factory=dict)
    epoch: int | None = None
    first_round: int | None = None
    error: str = ""


@dataclass(frozen=True)
class Left:
    """The network that there is to plan for: its topology, and a number that changes whenever links do."""

    topology: Topology
    version: int


@dataclass
class _Task:
    """What the thread works on: a swap's plan, made for a version of the network, and how long planning may take."""

    number: int
    plan: Plan | None
    version: int
    time_limit_s: float


class Swaps:
    """All swaps of a run. The run's loop calls `round_started` and `switch`; anything else may come from any thread."""

    def __init__(
        self,
        planner: Planner,
        epochs: Epochs,
        settings: RunSettings,
        left: Callable[[], Left],
        on_end: Callable[[Swap], None],
    ) -> None:
        """`left` raises TopologyError if the network is cut; `on_end` is told of each swap when it is over."""
        self._planner = planner
        self._epochs = epochs
        self._settings = settings
        self._left = left
        self._on_end = on_end
        self._changed = threading.Condition(threading.RLock())
        self._swaps: list[Swap] = []
        self._tasks: list[_Task] = []
        self._scheduled: dict[int, _Task] = {}
        self._round: int | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="swaps", daemon=True)
        self._thread.start()

    def request(
        self,
        policy: str,
        memory_gb: float | None = None,
        cause: str = "command",
        at_round: int | None = None,
        plan: Plan | None = None,
        time_limit_s: float = TIME_LIMIT_S,
    ) -> Swap:
        """Ask for a swap. `plan` is one for the whole network, if there is one already. Raises TestbedError."""
        memory_gb = self._settings.memory_gb if memory_gb is None else memory_gb
        if memory_gb > self._settings.memory_gb:
            raise TestbedError(
                f"memory_gb {memory_gb:g}: the aggregators of this run have {self._settings.memory_gb:g} GB; "
                "start a run with more to plan with more"
            )
        with self._changed:
            now = self._round
            if at_round is not None and at_round <= (-1 if now is None else now):
                raise TestbedError(f"at_round: round {at_round + 1} has begun; name a later one than {(now or 0) + 1}")
            swap = Swap(len(self._swaps), policy, memory_gb, cause, at_round, now, time.monotonic_ns())
            self._swaps.append(swap)
            task = _Task(swap.number, plan, 0, time_limit_s)
            if plan is not None and at_round is not None and at_round > (now or 0) + 1:
                self._note(swap.number, round_time_ms=plan.round_time_ms)
                self._keep(task, at_round)
            else:
                self._tasks.append(task)
            self._changed.notify_all()
            return self._swaps[swap.number]

    def replan(self) -> None:
        """Links have changed: plan what is in force, and all that is to come, again for the network as it is now."""
        with self._changed:
            for task in self._scheduled.values():
                self._note(task.number, state="waiting")
            to_come, self._scheduled = list(self._scheduled.values()), {}
            later = {task.number for task in to_come}
            wanted = [swap for swap in self._swaps if swap.state != "failed" and swap.number not in later]
            # What was asked for first may be in force last: by schedule, at a round of its own.
            last = max(wanted, key=_when, default=self._settings)
            policy, memory_gb = last.policy, last.memory_gb
            if all(self._swaps[task.number].cause != "links" for task in self._tasks):
                # One that has not begun will be planned for the network as it is then.
                self.request(policy, memory_gb, "links")
            self._tasks += to_come
            self._changed.notify_all()

    @property
    def all(self) -> list[Swap]:
        """The swaps so far, in the order of asking."""
        return list(self._swaps)

    def show(self, number: int) -> Swap:
        """One swap. Raises TestbedError if there is none of this number."""
        if not 0 <= number < len(self._swaps):
            raise TestbedError(f"there is no swap {number}; so far there are {len(self._swaps)}")
        return self._swaps[number]

    def round_started(self, number: int) -> None:
        """A round has started: what is scheduled for the next one is installed now."""
        with self._changed:
            self._round = number
            task = self._scheduled.pop(number + 1, None)
            if task is not None:
                self._note(task.number, state="due")
                self._tasks.insert(0, task)
                self._changed.notify_all()

    def switch(self, next_round: int, fleet: Fleet) -> None:
        """Between two rounds: have what is ready take over. Raises RunFailed or MulticastError.

        Waits for what is being installed and shall take over at this very round, or was asked for two rounds ago; never
        for planning, nor for a second swap.
        """
        while self._is_awaited(next_round):
            fleet.wait(_LOOK_S)
        with self._changed:
            ready = [swap for swap in self._swaps if swap.state == "ready"]
        if not ready:
            return
        [swap] = ready
        epoch = self._epochs.switch(next_round)
        with self._changed:
            steps_ms = {**swap.steps_ms, "in force after": (time.monotonic_ns() - swap.asked_ns) / 1e6}
            self._note(swap.number, state="in force", first_round=next_round, epoch=epoch.number, steps_ms=steps_ms)
            self._changed.notify_all()
        self._on_end(self._swaps[swap.number])

    def _is_awaited(self, next_round: int) -> bool:
        with self._changed:
            if not self._thread.is_alive() or any(swap.state in {"planning", "ready"} for swap in self._swaps):
                return False
            return any(
                swap.state in {"due", "installing"} and _latest_round(swap) <= next_round for swap in self._swaps
            )

    def close(self) -> None:
        """Give up what is not in force. The fleet must refuse questions by now. Safe to call twice."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._planner.give_up()
        self._thread.join()

    def _keep(self, task: _Task, at_round: int) -> None:
        """Keep what is planned until the round before its own has started."""
        before = self._scheduled.get(at_round)
        if before is not None:
            self._note(before.number, state="failed", error=f"another was asked for at round {at_round + 1}")
            self._on_end(self._swaps[before.number])
        self._scheduled[at_round] = task
        self._note(task.number, state="scheduled")

    def _note(self, number: int, **changes: object) -> None:
        self._swaps[number] = replace(self._swaps[number], **changes)  # type: ignore[arg-type]

    def _work(self) -> None:
        try:
            while (task := self._next()) is not None:
                try:
                    self._do(task)
                except Exception as error:  # whatever it was, the policy in force goes on
                    with self._changed:
                        self._note(task.number, state="failed", error=str(error))
                    if not self._closing:
                        self._on_end(self._swaps[task.number])
        finally:
            self._planner.stop()

    def _next(self) -> _Task | None:
        """The next thing to do, once what is ready has taken over; None at the end."""
        with self._changed:
            while not self._closing:
                if self._tasks and not any(swap.state == "ready" for swap in self._swaps):
                    return self._tasks.pop(0)
                self._changed.wait()
            return None

    def _do(self, task: _Task) -> None:
        while not self._closing:
            left = self._left()
            if task.plan is None or task.version != left.version:
                self._plan(task, left)
                continue  # links may have changed meanwhile
            assert task.plan is not None
            with self._changed:
                at_round = self._swaps[task.number].at_round
                if at_round is not None and at_round > (self._round or 0) + 1:
                    self._keep(task, at_round)
                    return
                self._note(task.number, state="installing")
            try:
                self._install(task.number, task.plan, left.topology)
                return
            except NetworkChanged:
                continue

    def _plan(self, task: _Task, left: Left) -> None:
        swap = self._swaps[task.number]
        self._note(task.number, state="planning")
        began_ns = time.monotonic_ns()
        request = PlanRequest(self._settings, left.topology, swap.policy, swap.memory_gb)
        task.plan = self._planner.plan(request, task.time_limit_s)
        task.version = left.version
        steps_ms = {"waiting": (began_ns - swap.asked_ns) / 1e6, "planning": (time.monotonic_ns() - began_ns) / 1e6}
        self._note(task.number, state="due", round_time_ms=task.plan.round_time_ms, steps_ms=steps_ms)

    def _install(self, number: int, plan: Plan, left: Topology) -> None:
        began_ns = time.monotonic_ns()
        self._epochs.introduce(plan, left)
        with self._changed:
            steps_ms = {**self._swaps[number].steps_ms, "installing": (time.monotonic_ns() - began_ns) / 1e6}
            self._note(number, state="ready", steps_ms=steps_ms)


def _when(swap: Swap) -> tuple[float, int]:
    """Orders swaps by when they are, or shall be, in force."""
    return (math.inf if swap.first_round is None else swap.first_round, swap.number)


def _latest_round(swap: Swap) -> int:
    """The round by which a swap shall be in force if it is planned by then."""
    return (swap.asked_in_round or 0) + _SOON_ROUNDS if swap.at_round is None else swap.at_round
