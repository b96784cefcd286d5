"""The ways to train that are compared: every schedule and baseline, with its measured times and bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from scheduler.topology import Topology
from testbed.paper.experiments import RING, STEP_MS, schedule_key
from testbed.paper.outcome import Outcome

TRAINED_S = 20.0  # of emulated time
SCHEDULES = (("all-to-all", 32.0), ("triangles", 0.0), ("pairs", 0.0), ("regional", 0.0))
RING_METHOD = "synchronous, ring all-reduce"
SYNCHRONOUS = "synchronous, multicast"
ALONE = "islands alone"
IDEAL = "one ideal machine"


@dataclass(frozen=True)
class Method:
    """A way to train. A round takes `round_s` and puts `round_gb` on all core links together.

    `steps` of each round, again and again. `policy` and `memory_gb`: of a run over the network; None: there is no
    network. `staleness_ms`: the planned T·(A + 1/2), of a schedule that mixes all islands.
    """

    name: str
    schedule: Sequence[Sequence[Sequence[int]]]
    round_s: float
    round_gb: float
    steps: Sequence[int]
    overlap: bool = False
    policy: str | None = None
    memory_gb: float = 0.0
    staleness_ms: float | None = None

    @property
    def rounds(self) -> int:
        """How many there is time for."""
        return int(TRAINED_S / self.round_s)

    def steps_in(self, rounds: int) -> int:
        """Steps of each island in the first so many rounds."""
        return sum(self.steps[number % len(self.steps)] for number in range(rounds))


def methods(topology: Topology, outcomes: Mapping[str, Outcome]) -> list[Method]:
    """Every schedule and baseline whose run there is.

    The testbed's own pauses between rounds are left out: they are no part of what is compared.
    """
    found = []
    everyone = [[list(range(len(topology.islands)))]]
    step_s = STEP_MS / 1e3
    for policy, memory_gb in SCHEDULES:
        outcome = outcomes.get(schedule_key(policy, memory_gb))
        if outcome is None or outcome.summary is None:
            continue
        summary = outcome.summary
        round_s = summary["measured"]["round_time_ms"]["median"] / 1e3
        cliques = [
            [[topology.island_ids.index(member) for member in clique] for clique in planned]
            for planned in summary["cliques"]
        ]
        round_gb = summary["multicast"]["core_bytes"] / summary["rounds"] * _full_size(summary)
        found.append(
            Method(
                f"{policy}, overlapped",
                cliques,
                round_s,
                round_gb,
                _overlapped_steps(round_s, step_s),
                True,
                policy,
                memory_gb,
                summary["predicted"]["objective_ms"],
            )
        )
        if policy == "all-to-all":
            found.append(
                Method(SYNCHRONOUS, everyone, round_s + step_s, round_gb, [1], policy=policy, memory_gb=memory_gb)
            )
    ring = outcomes.get(RING)
    if ring is not None and ring.summary is not None:
        measured = ring.summary["measured"]
        found.append(
            Method(
                RING_METHOD,
                everyone,
                measured["step_ms"] / 1e3,
                measured["core_gb_per_step"],
                [1],
                policy="ring-tcp",
            )
        )
    found.append(Method(ALONE, [[]], step_s, 0.0, [1]))
    found.append(Method(IDEAL, everyone, step_s, 0.0, [1]))
    return found


def _overlapped_steps(round_s: float, step_s: float) -> list[int]:
    """The steps that end in each round, if islands train without a pause."""
    done = [int(number * round_s / step_s) for number in range(int(TRAINED_S / round_s) + 1)]
    return [later - earlier for earlier, later in pairwise(done)]


def _full_size(summary: Mapping[str, Any]) -> float:
    """GB at full size of an emulated byte."""
    return 1e-9 / float(summary["rate_scale"])
