"""The rounds of a run: the barrier, the announced start, and what each round really did."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.exchange_area import ExchangeArea
from aggregator.wire import control
from testbed.links.interface import DirectionCounters
from testbed.network import naming
from testbed.run.conductor import Conductor
from testbed.run.epochs import Epochs
from testbed.run.outages import Outage, find_outages
from testbed.run.pace import Pace
from testbed.run.processes import ANSWER_TIMEOUT_S, TRAINING_TIMEOUT_S, Fleet, Process
from testbed.run.program import Epoch
from testbed.run.supervision import Restart
from testbed.run.verification import check_round

START_MARGIN_NS = 20_000_000  # from the moment all are ready to the announced start

Counters = Mapping[tuple[str, str], DirectionCounters]
"""What each direction of each link has carried, by (sending node, receiving node)."""

RoutingBytes = Mapping[tuple[str, str], int]
"""On-wire bytes of routing protocols on core links, by (sending router, receiving router)."""


@dataclass(frozen=True)
class RoundRecord:
    """One round as it was: times in emulated ns; the processes' own reports by host (`done`) and island.

    `restarts`: processes that were started again since the round before. `exact`: in f32, within rounding. `before` and
    `after` are the links' counters around it, `routing_bytes` what routing protocols had of each core direction.
    `disturbed`: links failed meanwhile; `outages` tells what that did to the streams. `trained`: reports of the
    training that goes with the round, released at `training_began_ns`: before it, or with overlap during it.
    `ended_ns`: all islands had averaged.
    """

    number: int
    epoch: int
    phase: int
    start_ns: int
    completion_ns: int
    planned_ns: int
    packetisation_ns: int
    training_began_ns: int
    ended_ns: int
    trained: dict[str, dict[str, Any]]
    ready: dict[str, dict[str, Any]]
    done: dict[str, dict[str, Any]]
    retired: dict[str, dict[str, Any]]
    applied: dict[str, dict[str, Any]]
    restarts: tuple[Restart, ...]
    exact: bool
    digests_equal: bool
    mixing: NDArray[np.float64]
    lan_exchange_ns: int
    before: Counters
    after: Counters
    routing_bytes: RoutingBytes
    disturbed: bool
    outages: Sequence[Outage]

    @property
    def ratio(self) -> float:
        return self.completion_ns / (self.planned_ns + self.packetisation_ns)

    @property
    def steps(self) -> int:
        """The training steps that go with the round, the same number on every island."""
        return max((int(report["steps"]) for report in self.trained.values()), default=0)

    def retired_without_occupancy(self) -> dict[str, dict[str, Any]]:
        """The edges' reports but for what memory.csv holds."""
        return {
            island: {name: value for name, value in report.items() if name != "occupancy"}
            for island, report in self.retired.items()
        }

    def total(self, field: str) -> int:
        """Sum of a counter of `done` over all islands."""
        return sum(int(report[field]) for report in self.done.values())


@dataclass(frozen=True)
class _Gathering:
    """How hosts gave each other their shards: the longest time, and whether all of an island then had the same."""

    took_ns: int = 0
    agreed: bool = True


def _gather_shards(fleet: Fleet, number: int, timeout_s: float) -> _Gathering:
    """Have the hosts of each island exchange their shards. Raises RunFailed.

    Only now, when all are done with the WAN: this machine's processors are those of all islands.
    """
    data_planes = fleet.of("dataplane")
    if all(process.host == 1 for process in data_planes):
        return _Gathering()
    fleet.send(data_planes, "gather", round=number)
    gathered = fleet.gather(data_planes, "gathered", timeout_s)
    digests: dict[str, set[str]] = {}
    for process, report in gathered.items():
        digests.setdefault(process.island, set()).add(report["digest"])
    took_ns = max(report["took_ns"] for report in gathered.values())
    return _Gathering(took_ns, all(len(of_island) == 1 for of_island in digests.values()))


@dataclass(frozen=True)
class Happened:
    """A round that is over, before it is checked; by process what it has answered."""

    number: int
    epoch: Epoch
    position: int
    start_ns: int
    training_began_ns: int
    ended_ns: int
    trained: Mapping[Process, control.Message]
    ready: Mapping[Process, control.Message]
    done: Mapping[Process, control.Message]
    retired: Mapping[Process, control.Message]
    applied: Mapping[Process, control.Message]
    gathering: _Gathering
    before: Counters
    after: Counters
    routing_bytes: RoutingBytes
    disturbed: bool


@dataclass(frozen=True)
class RoundHooks:
    """What else happens around rounds. `started` is told of a round's number and its start in ns, `judged` what it was.

    `between` is called before another round, which it is told, is prepared. `disturbed` tells of a time, from and to in
    ns, whether links failed in it; `counters` reads the links' counters, and `routing_bytes` how much of that routing
    protocols had.
    """

    started: Callable[[int, int], None]
    judged: Callable[[RoundRecord], None]
    between: Callable[[int], None]
    disturbed: Callable[[int, int], bool]
    counters: Callable[[], Counters]
    routing_bytes: Callable[[], RoutingBytes]


class Rounds:
    """Runs rounds one after the other, each with the epoch that is then in force."""

    def __init__(
        self,
        fleet: Fleet,
        epochs: Epochs,
        areas: Sequence[ExchangeArea],
        number_format: int,
        pace: Pace,
        hooks: RoundHooks,
    ) -> None:
        self._fleet = fleet
        self._epochs = epochs
        self._areas = areas
        self._number_format = number_format
        self._pace = pace
        self._hooks = hooks
        time_dilation = epochs.current.scale.time_dilation
        self._training_timeout_s = TRAINING_TIMEOUT_S * time_dilation + pace.set_training_s
        self._answer_timeout_s = ANSWER_TIMEOUT_S * time_dilation
        self._next_start_ns = 0
        self._training_began_ns = 0
        self._restarts = 0
        self.records: list[RoundRecord] = []

    def run(self, conductor: Conductor) -> None:
        """Run rounds, and check each, until the conductor says that no other follows. Raises RunFailed."""
        number = 0
        self._begin(number)
        while True:
            happened = self._exchange(number)
            paused = conductor.pausing
            if paused:
                self._judge(happened)  # whoever pauses wants to see what was
            goes_on = conductor.goes_on(number, self._fleet)
            if goes_on:
                self._hooks.between(number + 1)
                self._begin(number + 1)
            if not paused:
                self._judge(happened)
            if not goes_on:
                return
            number += 1

    def _begin(self, number: int) -> None:
        """Have the trainers leave their contributions to a round; without overlap they train first."""
        if not self._pace.overlap:
            self._train(number, time.monotonic_ns())
        self._fleet.send(
            self._fleet.of("trainer"),
            "contribute",
            round=number,
            epoch=self._epochs.current.number,
            phase=self._epochs.phase_of(number),
        )

    def _train(self, number: int, begin_ns: int) -> None:
        self._training_began_ns = begin_ns
        work = self._pace.next_work(begin_ns, self._epochs.current)
        self._fleet.send(self._fleet.of("trainer"), "train", round=number, **vars(work))

    def _exchange(self, number: int) -> Happened:
        fleet, epoch, position = self._fleet, self._epochs.current, self._epochs.phase_of(number)
        trainers, data_planes, edges = fleet.of("trainer"), fleet.of("dataplane"), fleet.of("edge")
        phase = epoch.phases[position]
        ready = fleet.gather(trainers, "ready", self._training_timeout_s)
        fleet.send([*edges, *data_planes], "arm", round=number, epoch=epoch.number, phase=position)
        fleet.gather([*edges, *data_planes], "armed", self._answer_timeout_s)
        before, routing_before = self._hooks.counters(), self._hooks.routing_bytes()
        start_ns = max(self._next_start_ns, time.monotonic_ns() + START_MARGIN_NS)
        self._next_start_ns = start_ns + self._pace.period_ns(epoch)
        fetch_ns, give_up_ns = start_ns + phase.fetch_ns, start_ns + phase.give_up_ns
        fleet.send(data_planes, "start", round=number, start_ns=start_ns, fetch_ns=fetch_ns, give_up_ns=give_up_ns)
        if self._pace.overlap:
            self._train(number, start_ns)
        self._hooks.started(number, start_ns)
        until_give_up_s = max(give_up_ns - time.monotonic_ns(), 0) / 1e9
        done = fleet.gather(data_planes, "done", until_give_up_s + self._answer_timeout_s)
        after, routing_after = self._hooks.counters(), self._hooks.routing_bytes()
        was_disturbed = self._hooks.disturbed(start_ns, time.monotonic_ns())
        gathering = _gather_shards(fleet, number, self._answer_timeout_s)
        fleet.send(edges, "retire", round=number)
        fleet.send(trainers, "apply", round=number)
        retired = fleet.gather(edges, "retired", self._answer_timeout_s)
        trained = fleet.gather(trainers, "trained", self._training_timeout_s)
        applied = fleet.gather(trainers, "applied", self._training_timeout_s)
        return Happened(
            number=number,
            epoch=epoch,
            position=position,
            start_ns=start_ns,
            training_began_ns=self._training_began_ns,
            ended_ns=time.monotonic_ns(),
            trained=trained,
            ready=ready,
            done=done,
            retired=retired,
            applied=applied,
            gathering=gathering,
            before=before,
            after=after,
            routing_bytes={ends: count - routing_before[ends] for ends, count in routing_after.items()},
            disturbed=was_disturbed,
        )

    def _judge(self, happened: Happened) -> None:
        """Check every sum of a round and record it, while the next one is being prepared."""
        number, epoch, position = happened.number, happened.epoch, happened.position
        phase = epoch.phases[position]
        members = {island_id: epoch.members(position, name) for name, island_id in epoch.island_ids.items()}
        check = check_round(self._areas, members, number, self._number_format)
        digests = {process.island: message["digest"] for process, message in happened.applied.items()}
        done = {naming.host_name(process.island, process.host): message for process, message in happened.done.items()}
        record = RoundRecord(
            number=number,
            epoch=epoch.number,
            phase=position,
            start_ns=happened.start_ns,
            completion_ns=max(message["completed_ns"] for message in done.values()) - happened.start_ns,
            planned_ns=phase.planned_ns,
            packetisation_ns=phase.packetisation_ns,
            training_began_ns=happened.training_began_ns,
            ended_ns=happened.ended_ns,
            trained={process.island: message for process, message in happened.trained.items()},
            ready={process.island: message for process, message in happened.ready.items()},
            done=done,
            retired={process.island: message for process, message in happened.retired.items()},
            applied={process.island: message for process, message in happened.applied.items()},
            restarts=tuple(self._fleet.restarts[self._restarts :]),
            exact=check.exact,
            digests_equal=all(len({digests[member] for member in clique}) == 1 for clique in phase.cliques)
            and happened.gathering.agreed,
            lan_exchange_ns=happened.gathering.took_ns,
            before=happened.before,
            after=happened.after,
            routing_bytes=happened.routing_bytes,
            disturbed=happened.disturbed,
            outages=find_outages(epoch, position, number, self._areas) if happened.disturbed else [],
            mixing=check.mixing,
        )
        self._restarts = len(self._fleet.restarts)
        self.records.append(record)
        self._hooks.judged(record)
