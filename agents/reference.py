"""The same training in one plain process, without a network: what a run's digests must equal, bit for bit.

    python -m agents.reference --workload digits --islands 9 --seed 1 --rounds 20 --values 418018 \\
        --values-per-chunk 2227 --schedule '[[[0,1,2,3,4,5,6,7,8]]]'

The schedule is a list of rounds, each a list of cliques, each a list of island ids; it repeats, and islands that are
in no clique of a round are idle. Prints one JSON document: per round and island `digests` (of the mean) and
`parameters_digests` (afterwards), `saturated`, `non_finite` and `evaluations` (per island, after the last round).

`--steps` says how many steps go with each round, and repeats too. With `--overlap 1` a round carries the state before
its steps, which are done while it is under way.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from agents.exchange import PLAIN, ExchangeSettings, IslandExchange
from agents.exchange_area import ExchangeArea, chunk_count
from agents.fixed_point import scale_exponents
from agents.lanes import WORD_BITS
from agents.outer import OuterSettings
from agents.pinned import ensure_pinned
from agents.workloads import load_workload
from agents.workloads.interface import Setting, Workload

Cliques = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Outcome:
    """`digests[round][island]` of the mean, `parameters_digests` after it; `evaluations[island]` after the last round,
    and by the number of rounds done in `curve`; counts of all islands and rounds.
    """

    digests: list[list[str]]
    parameters_digests: list[list[str]]
    evaluations: list[Mapping[str, float]]
    curve: dict[int, list[Mapping[str, float]]]
    saturated: int
    non_finite: int


def with_idle(cliques: Cliques, islands: int) -> list[list[int]]:
    """The round's cliques, each island that is in none of them on its own.

    Raises ValueError for an island that does not exist or is in two cliques.
    """
    seen = [island for clique in cliques for island in clique]
    for island in seen:
        if not 0 <= island < islands:
            raise ValueError(f"island {island} in the schedule: there are only islands 0 to {islands - 1}")
        if seen.count(island) > 1:
            raise ValueError(f"island {island} is in the cliques of one round twice")
    return [list(clique) for clique in cliques] + [[island] for island in range(islands) if island not in seen]


@dataclass(frozen=True)
class Pace:
    """Steps that go with each round (round k has steps[k mod their number]), before it or with overlap during it."""

    steps: Sequence[int] = (1,)
    overlap: bool = False


def train_reference(
    workload: Workload,
    setting: Setting,
    schedule: Sequence[Cliques],
    rounds: int,
    values_per_chunk: int,
    pace: Pace = Pace(),
    exchange: ExchangeSettings = PLAIN,
    evaluate_every: int = 0,
) -> Outcome:
    """Train for `rounds` rounds; round k exchanges in the cliques of schedule[k mod its length].

    `workload.prepare(setting)` must have been called. `evaluate_every`: also measure after each so many rounds, and at
    the start. Raises ValueError for an empty schedule, or one that does not fit.
    """
    if not schedule:
        raise ValueError("the schedule has no rounds")
    if not pace.steps:
        raise ValueError("there are no steps")
    phases = [with_idle(cliques, setting.islands) for cliques in schedule]
    tensors = workload.tensors(setting)
    largest = max(len(clique) for cliques in phases for clique in cliques)
    exponents = scale_exponents([tensor.range for tensor in tensors], largest, WORD_BITS // exchange.lanes)
    words = setting.payload_values // exchange.lanes
    shape = (1, words)
    chunks = chunk_count(words, values_per_chunk)
    areas, islands = [], []
    for island_id in range(setting.islands):
        area = ExchangeArea(
            np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros((1, chunks), np.uint64), values_per_chunk
        )
        island = IslandExchange(workload.island(setting, island_id), tensors, island_id, area, exchange)
        island.set_scale(exponents)
        areas.append(area)
        islands.append(island)

    digests, parameters_digests, saturated, non_finite, first_step = [], [], 0, 0, 0
    curve = {0: _evaluate(islands)} if evaluate_every else {}
    for round_number in range(rounds):
        steps = range(first_step, first_step + pace.steps[round_number % len(pace.steps)])
        first_step = steps.stop
        cliques = phases[round_number % len(phases)]
        if not pace.overlap:
            _train(islands, steps)
        for clique in cliques:
            for member in clique:
                contribution = islands[member].contribute(round_number, len(clique))
                saturated += contribution.saturated
                non_finite += contribution.non_finite
        if pace.overlap:
            _train(islands, steps)
        for clique in cliques:
            for member in clique:
                _deliver(areas, clique, member)
        applied = [island.apply(round_number) for island in islands]
        digests.append([each.digest for each in applied])
        parameters_digests.append([each.parameters_digest for each in applied])
        if evaluate_every and (round_number + 1) % evaluate_every == 0:
            curve[round_number + 1] = _evaluate(islands)
    return Outcome(digests, parameters_digests, _evaluate(islands), curve, saturated, non_finite)


def _evaluate(islands: Sequence[IslandExchange]) -> list[Mapping[str, float]]:
    return [island.trainer.evaluate() for island in islands]


def _train(islands: Sequence[IslandExchange], steps: Iterable[int]) -> None:
    for step in steps:
        for island in islands:
            island.trainer.train(step)


def _deliver(areas: Sequence[ExchangeArea], clique: Sequence[int], receiver: int) -> None:
    """Leave in the receiver's area what a network without loss would: the sum of the others' contributions."""
    area = areas[receiver]
    area.summed[0] = 0
    area.bitmaps[0] = 0
    for sender in clique:
        if sender != receiver:
            area.summed[0] += areas[sender].sent[0]
            area.bitmaps[0] |= np.uint64(1 << sender)


def main() -> int:
    ensure_pinned()
    parser = argparse.ArgumentParser(description="The training of a run in one plain process, without a network.")
    parser.add_argument("--workload", required=True)
    parser.add_argument("--islands", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--values", type=int, required=True, help="32-bit words in an island's payload")
    parser.add_argument("--values-per-chunk", type=int, required=True)
    parser.add_argument("--schedule", required=True, metavar="JSON", help="rounds of cliques of island ids")
    parser.add_argument("--steps", default="[1]", metavar="JSON", help="steps that go with each round")
    parser.add_argument("--overlap", type=int, choices=(0, 1), default=0, help="1: train while a round is under way")
    parser.add_argument("--evaluate-every", type=int, default=0, metavar="N", help="also measure after each N rounds")
    parser.add_argument("--lanes", type=int, choices=(1, 2, 4), default=1, help="values in each word")
    parser.add_argument("--outer-learning-rate", type=float, default=1.0)
    parser.add_argument("--outer-momentum", type=float, default=0.0)
    parser.add_argument(
        "--workload-dir", type=Path, metavar="DIR", help="what a run has prepared; default: prepare anew"
    )
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            directory = arguments.workload_dir or Path(scratch)
            setting = Setting(directory, arguments.seed, arguments.islands, arguments.values * arguments.lanes)
            workload = load_workload(arguments.workload)
            if arguments.workload_dir is None:
                workload.prepare(setting)
            outer = OuterSettings(arguments.outer_learning_rate, arguments.outer_momentum)
            outcome = train_reference(
                workload,
                setting,
                json.loads(arguments.schedule),
                arguments.rounds,
                arguments.values_per_chunk,
                Pace(json.loads(arguments.steps), bool(arguments.overlap)),
                ExchangeSettings(lanes=arguments.lanes, outer=outer),
                arguments.evaluate_every,
            )
    except (ValueError, OSError) as error:
        print(f"reference: {error}", file=sys.stderr)
        return 2
    print(json.dumps(asdict(outcome)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
