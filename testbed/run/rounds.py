"""The rounds of a run: the barrier, the announced start, and what each round really did."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.exchange_area import ExchangeArea
from testbed.network import naming
from testbed.run.processes import Fleet
from testbed.run.program import Epoch
from testbed.run.verification import check_round

START_MARGIN_NS = 20_000_000  # from the moment all are ready to the announced start
TRAINING_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class RoundRecord:
    """One round as it was: times in emulated ns; the processes' own reports are by host (`done`) and island."""

    number: int
    epoch: int
    phase: int
    start_ns: int
    completion_ns: int
    planned_ns: int
    packetisation_ns: int
    done: dict[str, dict[str, Any]]
    retired: dict[str, dict[str, Any]]
    applied: dict[str, dict[str, Any]]
    exact: bool
    digests_equal: bool
    mixing: NDArray[np.float64]
    lan_exchange_ns: int = 0

    @property
    def ratio(self) -> float:
        return self.completion_ns / (self.planned_ns + self.packetisation_ns)

    def total(self, field: str) -> int:
        """Sum of a counter of `done` over all islands."""
        return sum(int(report[field]) for report in self.done.values())


@dataclass(frozen=True)
class _Gathering:
    """How the hosts of the islands gave each other their shards: the longest time, and whether all then had the same."""

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
    epoch: Epoch,
    areas: Sequence[ExchangeArea],
    rounds: int,
    time_dilation: float,
    on_round: Callable[[RoundRecord], None],
) -> list[RoundRecord]:
    """Run `rounds` rounds of `epoch` and check each. Raises RunFailed."""
    trainers, data_planes, edges = fleet.of("trainer"), fleet.of("dataplane"), fleet.of("edge")
    training_timeout_s = TRAINING_TIMEOUT_S * time_dilation
    answer_timeout_s = ANSWER_TIMEOUT_S * time_dilation
    records: list[RoundRecord] = []
    next_start_ns = 0
    fleet.send(trainers, "train", round=0, epoch=epoch.number, phase=epoch.phase_of(0))
    for number in range(rounds):
        position = epoch.phase_of(number)
        phase = epoch.phases[position]
        fleet.gather(trainers, "ready", training_timeout_s)
        fleet.send([*edges, *data_planes], "arm", round=number, epoch=epoch.number, phase=position)
        fleet.gather([*edges, *data_planes], "armed", answer_timeout_s)
        start_ns = max(next_start_ns, time.monotonic_ns() + START_MARGIN_NS)
        next_start_ns = start_ns + epoch.period_ns
        give_up_ns = start_ns + phase.give_up_ns
        fleet.send(data_planes, "start", round=number, start_ns=start_ns, give_up_ns=give_up_ns)
        until_give_up_s = (give_up_ns - time.monotonic_ns()) / 1e9
        done = fleet.gather(data_planes, "done", until_give_up_s + answer_timeout_s)
        gathering = _gather_shards(fleet, number, answer_timeout_s)
        fleet.send(edges, "retire", round=number)
        fleet.send(trainers, "apply", round=number)
        retired = fleet.gather(edges, "retired", answer_timeout_s)
        applied = fleet.gather(trainers, "applied", training_timeout_s)
        if number + 1 < rounds:
            fleet.send(trainers, "train", round=number + 1, epoch=epoch.number, phase=epoch.phase_of(number + 1))
        members = {island_id: epoch.members(position, name) for name, island_id in epoch.island_ids.items()}
        check = check_round(areas, members, number)
        digests = {process.island: message["digest"] for process, message in applied.items()}
        record = RoundRecord(
            number=number,
            epoch=epoch.number,
            phase=position,
            start_ns=start_ns,
            completion_ns=max(message["completed_ns"] for message in done.values()) - start_ns,
            planned_ns=phase.planned_ns,
            packetisation_ns=phase.packetisation_ns,
            done={naming.host_name(process.island, process.host): message for process, message in done.items()},
            retired={process.island: message for process, message in retired.items()},
            applied={process.island: message for process, message in applied.items()},
            exact=check.exact,
            digests_equal=all(len({digests[member] for member in clique}) == 1 for clique in phase.cliques)
            and gathering.agreed,
            lan_exchange_ns=gathering.took_ns,
            mixing=check.mixing,
        )
        records.append(record)
        on_round(record)
    return records
