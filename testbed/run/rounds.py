"""The rounds of a run: the barrier, the announced start, and what each round really did."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.exchange_area import ExchangeArea
from testbed.links.interface import DirectionCounters
from testbed.network import naming
from testbed.run.epochs import Epochs
from testbed.run.outages import Outage, find_outages
from testbed.run.pace import Pace
from testbed.run.processes import ANSWER_TIMEOUT_S, TRAINING_TIMEOUT_S, Fleet
from testbed.run.supervision import Restart
from testbed.run.verification import check_round

START_MARGIN_NS = 20_000_000  # from the moment all are ready to the announced start

Counters = Mapping[tuple[str, str], DirectionCounters]
"""What each direction of each link has carried, by (sending node, receiving node)."""


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
    routing_bytes: Mapping[tuple[str, str], int]
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


def run_rounds(
    fleet: Fleet,
    epochs: Epochs,
    areas: Sequence[ExchangeArea],
    rounds: int,
    number_format: int,
    pace: Pace,
    on_start: Callable[[int, int], None],
    on_round: Callable[[RoundRecord], None],
    disturbed: Callable[[int, int], bool],
    counters: Callable[[], Counters],
    routing_bytes: Callable[[], Mapping[tuple[str, str], int]],
) -> list[RoundRecord]:
    """Run `rounds` rounds and check each. Raises RunFailed or MulticastError.

    `on_start` is told when a round (number, start in ns) starts, `on_round` what it was. `disturbed` tells of a time,
    from and to, whether links failed in it; `counters` reads the links' counters, and `routing_bytes` how much of that
    routing protocols had.
    """
    trainers, data_planes, edges = fleet.of("trainer"), fleet.of("dataplane"), fleet.of("edge")
    time_dilation = epochs.current.scale.time_dilation
    training_timeout_s = TRAINING_TIMEOUT_S * time_dilation
    answer_timeout_s = ANSWER_TIMEOUT_S * time_dilation
    records: list[RoundRecord] = []
    next_start_ns = training_began_ns = 0
    restarts = 0

    def train(number: int, begin_ns: int) -> None:
        fleet.send(trainers, "train", round=number, **vars(pace.next_work(begin_ns, epochs.current)))

    def begin(number: int) -> None:
        nonlocal training_began_ns
        if not pace.overlap:
            training_began_ns = time.monotonic_ns()
            train(number, training_began_ns)
        fleet.send(trainers, "contribute", round=number, epoch=epochs.current.number, phase=epochs.phase_of(number))

    begin(0)
    for number in range(rounds):
        epoch, position = epochs.current, epochs.phase_of(number)
        phase = epoch.phases[position]
        ready = fleet.gather(trainers, "ready", training_timeout_s)
        fleet.send([*edges, *data_planes], "arm", round=number, epoch=epoch.number, phase=position)
        fleet.gather([*edges, *data_planes], "armed", answer_timeout_s)
        before, routing_before = counters(), routing_bytes()
        start_ns = max(next_start_ns, time.monotonic_ns() + START_MARGIN_NS)
        next_start_ns = start_ns + pace.period_ns(epoch)
        give_up_ns = start_ns + phase.give_up_ns
        fleet.send(data_planes, "start", round=number, start_ns=start_ns, give_up_ns=give_up_ns)
        if pace.overlap:
            training_began_ns = start_ns
            train(number, start_ns)
        on_start(number, start_ns)
        if number + 1 < rounds:
            epochs.prepare(number)
        until_give_up_s = max(give_up_ns - time.monotonic_ns(), 0) / 1e9
        done = fleet.gather(data_planes, "done", until_give_up_s + answer_timeout_s)
        after, routing_after = counters(), routing_bytes()
        was_disturbed = disturbed(start_ns, time.monotonic_ns())
        gathering = _gather_shards(fleet, number, answer_timeout_s)
        fleet.send(edges, "retire", round=number)
        fleet.send(trainers, "apply", round=number)
        retired = fleet.gather(edges, "retired", answer_timeout_s)
        trained = fleet.gather(trainers, "trained", training_timeout_s)
        applied = fleet.gather(trainers, "applied", training_timeout_s)
        ended_ns, began_ns = time.monotonic_ns(), training_began_ns
        if number + 1 < rounds:
            epochs.switch(number + 1)
            begin(number + 1)
        members = {island_id: epoch.members(position, name) for name, island_id in epoch.island_ids.items()}
        check = check_round(areas, members, number, number_format)
        digests = {process.island: message["digest"] for process, message in applied.items()}
        record = RoundRecord(
            number=number,
            epoch=epoch.number,
            phase=position,
            start_ns=start_ns,
            completion_ns=max(message["completed_ns"] for message in done.values()) - start_ns,
            planned_ns=phase.planned_ns,
            packetisation_ns=phase.packetisation_ns,
            training_began_ns=began_ns,
            ended_ns=ended_ns,
            trained={process.island: message for process, message in trained.items()},
            ready={process.island: message for process, message in ready.items()},
            done={naming.host_name(process.island, process.host): message for process, message in done.items()},
            retired={process.island: message for process, message in retired.items()},
            applied={process.island: message for process, message in applied.items()},
            restarts=tuple(fleet.restarts[restarts:]),
            exact=check.exact,
            digests_equal=all(len({digests[member] for member in clique}) == 1 for clique in phase.cliques)
            and gathering.agreed,
            lan_exchange_ns=gathering.took_ns,
            before=before,
            after=after,
            routing_bytes={ends: count - routing_before[ends] for ends, count in routing_after.items()},
            disturbed=was_disturbed,
            outages=find_outages(epoch, position, number, areas) if was_disturbed else [],
            mixing=check.mixing,
        )
        restarts = len(fleet.restarts)
        records.append(record)
        on_round(record)
    return records
