"""The rounds of a run: the barrier, the announced start, and what each round really did."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.exchange_area import ExchangeArea
from testbed.run.processes import Fleet
from testbed.run.program import Epoch
from testbed.run.supervision import Restart
from testbed.run.verification import check_round

START_MARGIN_NS = 20_000_000  # from the moment all are ready to the announced start
TRAINING_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class RoundRecord:
    """One round as it was: times in emulated ns; `ready`, `done`, `retired`, `applied` are the processes' own reports.

    `restarts`: processes that were started again since the round before. `exact`: in f32, within rounding.
    """

    number: int
    epoch: int
    phase: int
    start_ns: int
    completion_ns: int
    planned_ns: int
    packetisation_ns: int
    ready: dict[str, dict[str, Any]]
    done: dict[str, dict[str, Any]]
    retired: dict[str, dict[str, Any]]
    applied: dict[str, dict[str, Any]]
    restarts: tuple[Restart, ...]
    exact: bool
    digests_equal: bool
    mixing: NDArray[np.float64]

    @property
    def ratio(self) -> float:
        return self.completion_ns / (self.planned_ns + self.packetisation_ns)

    def retired_without_occupancy(self) -> dict[str, dict[str, Any]]:
        """The edges' reports but for what memory.csv holds."""
        return {
            island: {name: value for name, value in report.items() if name != "occupancy"}
            for island, report in self.retired.items()
        }

    def total(self, field: str) -> int:
        """Sum of a counter of `done` over all islands."""
        return sum(int(report[field]) for report in self.done.values())


def run_rounds(
    fleet: Fleet,
    epoch: Epoch,
    areas: Sequence[ExchangeArea],
    rounds: int,
    time_dilation: float,
    number_format: int,
    on_start: Callable[[int, int], None],
    on_round: Callable[[RoundRecord], None],
) -> list[RoundRecord]:
    """Run `rounds` rounds of `epoch` and check each; tells when a round (number, start in ns) starts and what it was.

    Raises RunFailed.
    """
    trainers, data_planes, edges = fleet.of("trainer"), fleet.of("dataplane"), fleet.of("edge")
    training_timeout_s = TRAINING_TIMEOUT_S * time_dilation
    answer_timeout_s = ANSWER_TIMEOUT_S * time_dilation
    records: list[RoundRecord] = []
    next_start_ns = 0
    restarts = 0
    fleet.send(trainers, "train", round=0, epoch=epoch.number, phase=epoch.phase_of(0))
    for number in range(rounds):
        position = epoch.phase_of(number)
        phase = epoch.phases[position]
        ready = fleet.gather(trainers, "ready", training_timeout_s)
        fleet.send([*edges, *data_planes], "arm", round=number, epoch=epoch.number, phase=position)
        fleet.gather([*edges, *data_planes], "armed", answer_timeout_s)
        start_ns = max(next_start_ns, time.monotonic_ns() + START_MARGIN_NS)
        next_start_ns = start_ns + epoch.period_ns
        give_up_ns = start_ns + phase.give_up_ns
        fleet.send(data_planes, "start", round=number, start_ns=start_ns, give_up_ns=give_up_ns)
        on_start(number, start_ns)
        until_give_up_s = (give_up_ns - time.monotonic_ns()) / 1e9
        done = fleet.gather(data_planes, "done", until_give_up_s + answer_timeout_s)
        fleet.send(edges, "retire", round=number)
        fleet.send(trainers, "apply", round=number)
        retired = fleet.gather(edges, "retired", answer_timeout_s)
        applied = fleet.gather(trainers, "applied", training_timeout_s)
        if number + 1 < rounds:
            fleet.send(trainers, "train", round=number + 1, epoch=epoch.number, phase=epoch.phase_of(number + 1))
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
            ready={process.island: message for process, message in ready.items()},
            done={process.island: message for process, message in done.items()},
            retired={process.island: message for process, message in retired.items()},
            applied={process.island: message for process, message in applied.items()},
            restarts=tuple(fleet.restarts[restarts:]),
            exact=check.exact,
            digests_equal=all(len({digests[member] for member in clique}) == 1 for clique in phase.cliques),
            mixing=check.mixing,
        )
        restarts = len(fleet.restarts)
        records.append(record)
        on_round(record)
    return records
