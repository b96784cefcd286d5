import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from agents.exchange import PLAIN, IslandExchange, parameters_digest
from agents.exchange_area import map_exchange_area
from agents.fixed_point import scale_exponents
from agents.pinned import ENVIRONMENT
from agents.reference import Pace, train_reference, with_idle
from agents.workloads import load_workload
from agents.workloads.interface import Setting
from agents.workloads.synthetic import integers
from aggregator.wire.control import Channel, Message, pair

TRIANGLES = [[[0, 1, 2], [3, 4, 5], [6, 7, 8]], [[0, 3, 6], [1, 4, 7], [2, 5, 8]]]
ALL = [[list(range(9))]]
VALUES, VALUES_PER_CHUNK = 418_018, 2227
DEPTH = 3
LONG_NS = 300_000_000  # longer than a step of digits really takes


def prepared(name: str, directory: Path, islands: int = 9, values: int = VALUES) -> Setting:
    setting = Setting(directory, 1, islands, values)
    load_workload(name).prepare(setting)
    return setting


def pinned_reference(
    setting: Setting, workload: str, schedule: list[list[list[int]]], rounds: int, *more: str
) -> dict[str, Any]:
    """The reference as a run would start it: this process has as many BLAS threads as it likes, so other digests."""
    options = {
        "workload": workload,
        "islands": setting.islands,
        "seed": setting.seed,
        "rounds": rounds,
        "values": setting.payload_values,
        "values-per-chunk": VALUES_PER_CHUNK,
        "schedule": json.dumps(schedule),
        "workload-dir": setting.directory,
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "agents.reference", *words, *more]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True, env={**os.environ, **ENVIRONMENT}
    )
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome


class TrainerUnderTest:
    """A trainer process and the run's end of its channel."""

    def __init__(self, setting: Setting, island_id: int, workload: str, area: Path) -> None:
        ours, theirs = pair()
        command = [sys.executable, "-m", "agents.trainer", "--control-fd", str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True)
        theirs.close()
        ours.socket.settimeout(60)
        self.channel: Channel = ours
        hello = self.ask(
            "setup",
            island=f"i{island_id}",
            island_id=island_id,
            islands=[f"i{i}" for i in range(setting.islands)],
            workload=workload,
            workload_dir=str(setting.directory),
            seed=setting.seed,
            exchange_area=str(area),
            values=setting.payload_values,
            values_per_chunk=VALUES_PER_CHUNK,
            depth=DEPTH,
            exchange=PLAIN.to_message(),
        )
        assert hello == {"type": "hello", "pid": self.process.pid, "realtime": False}

    def ask(self, kind: str, **fields: object) -> Message | None:
        self.channel.send(kind, **fields)
        return self.channel.receive()

    def end(self) -> None:
        self.channel.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=10)


@pytest.fixture
def one_blas_thread() -> Iterator[None]:
    with threadpool_limits(1):
        yield


@pytest.fixture
def trainers() -> Iterator[list[TrainerUnderTest]]:
    running: list[TrainerUnderTest] = []
    yield running
    for trainer in running:
        trainer.end()


def test_idle_islands_are_on_their_own_and_bad_cliques_are_refused() -> None:
    assert with_idle([[0, 2]], 4) == [[0, 2], [1], [3]]
    with pytest.raises(ValueError, match="island 4"):
        with_idle([[0, 4]], 4)
    with pytest.raises(ValueError, match="island 1 is in"):
        with_idle([[0, 1], [1, 2]], 4)


@pytest.mark.parametrize("schedule", [ALL, TRIANGLES], ids=["all-to-all", "triangles"])
def test_digits_reach_their_accuracy_on_every_island(tmp_path: Path, schedule: list[list[list[int]]]) -> None:
    setting = prepared("digits", tmp_path)
    outcome = pinned_reference(setting, "digits", schedule, 20)
    assert (outcome["saturated"], outcome["non_finite"]) == (0, 0)
    assert min(evaluation["accuracy"] for evaluation in outcome["evaluations"]) >= 0.94
    assert len(outcome["digests"]) == 20
    for round_number, digests in enumerate(outcome["digests"]):
        cliques = schedule[round_number % len(schedule)]
        for clique in cliques:
            assert len({digests[island] for island in clique}) == 1
        assert len(set(digests)) == len(cliques)


@pytest.mark.usefixtures("one_blas_thread")
def test_members_of_a_clique_agree_whatever_the_order_of_arrival(tmp_path: Path) -> None:
    """The trainers driven one by one, sums taken in another order for each: the reference's digests, bit for bit."""
    setting = prepared("digits", tmp_path)
    workload = load_workload("digits")
    expected = train_reference(workload, setting, TRIANGLES, 3, VALUES_PER_CHUNK)
    tensors = workload.tensors(setting)
    exponents = scale_exponents([tensor.range for tensor in tensors], 3)
    areas = [map_exchange_area(tmp_path / f"area{i}", DEPTH, VALUES, VALUES_PER_CHUNK, create=True) for i in range(9)]
    islands = [IslandExchange(workload.island(setting, i), tensors, i, areas[i]) for i in range(9)]
    for round_number in range(3):
        row = round_number % DEPTH
        for i in reversed(range(9)):
            islands[i].set_scale(exponents)
            islands[i].trainer.train(round_number)
            islands[i].contribute(round_number, 3)
        for clique in TRIANGLES[round_number % 2]:
            for receiver in clique:
                senders = [i for i in clique if i != receiver]
                for sender in sorted(senders, reverse=receiver % 2 == 0):
                    areas[receiver].summed[row] += areas[sender].sent[row]
                    areas[receiver].bitmaps[row] |= np.uint64(1 << sender)
        assert [island.apply(round_number).digest for island in islands] == expected.digests[round_number]


def test_a_round_of_synthetic_brings_the_mean_of_the_cliques_integers(tmp_path: Path) -> None:
    setting = prepared("synthetic", tmp_path, islands=4, values=1000)
    outcome = train_reference(load_workload("synthetic"), setting, [[[0, 1, 2]]], 2, 300)
    drawn = [integers(setting, island, 1).astype(np.int64) for island in range(4)]
    together, alone = (drawn[0] + drawn[1] + drawn[2]) / 3, drawn[3] / 1
    assert outcome.digests[1] == [parameters_digest(together)] * 3 + [parameters_digest(alone)]
    assert outcome.evaluations == [{}] * 4


def test_a_trainer_process_gives_the_references_digests(tmp_path: Path, trainers: list[TrainerUnderTest]) -> None:
    setting = prepared("digits", tmp_path, islands=2)
    expected = pinned_reference(setting, "digits", [[[0, 1]], []], 3)
    tensors = load_workload("digits").tensors(setting)
    exponents = scale_exponents([tensor.range for tensor in tensors], 2)
    areas = []
    for i in range(2):
        areas.append(map_exchange_area(tmp_path / f"area{i}", DEPTH, VALUES, VALUES_PER_CHUNK, create=True))
        trainers.append(TrainerUnderTest(setting, i, "digits", tmp_path / f"area{i}"))
    for i, trainer in enumerate(trainers):
        phases = [{"members": 0b11}, {"members": 1 << i}]
        ready = trainer.ask("epoch", epoch=4, scale_exponents=exponents, phases=phases)
        assert ready == {"type": "epoch_ready", "epoch": 4}
    for round_number in range(3):
        phase = round_number % 2
        no_losses = {"saturated": 0, "non_finite": 0, "denormal": 0}
        for trainer in trainers:
            began_ns = time.monotonic_ns()
            trained = trainer.ask(
                "train", round=round_number, first_step=round_number, steps=1, done_ns=began_ns + LONG_NS
            )
            assert trained is not None
            assert (trained["type"], trained["round"], trained["steps"]) == ("trained", round_number, 1)
            assert 0 < trained["compute_ns"] < time.monotonic_ns() - began_ns
            assert time.monotonic_ns() - began_ns >= LONG_NS
            ready = trainer.ask("contribute", round=round_number, epoch=4, phase=phase)
            assert ready == {"type": "ready", "round": round_number, **no_losses}
        if phase == 0:
            for i in range(2):
                areas[i].summed[round_number] = areas[1 - i].sent[round_number]
                areas[i].bitmaps[round_number] = 1 << (1 - i)
        for i, trainer in enumerate(trainers):
            applied = trainer.ask("apply", round=round_number)
            assert applied == {
                "type": "applied",
                "round": round_number,
                "digest": expected["digests"][round_number][i],
                "parameters_digest": expected["parameters_digests"][round_number][i],
            }
    for i, trainer in enumerate(trainers):
        assert trainer.ask("evaluate") == {"type": "evaluated", **expected["evaluations"][i]}
    # One ends when told to, the other because the run is gone.
    trainers[0].channel.send("stop")
    trainers[1].channel.close()
    assert [trainer.process.wait(timeout=10) for trainer in trainers] == [0, 0]


def test_a_trainer_process_with_overlap_gives_the_references_digests(
    tmp_path: Path, trainers: list[TrainerUnderTest]
) -> None:
    """Contributions first, then the round's steps, then the mean: as a run with overlap has it."""
    setting = prepared("digits", tmp_path, islands=2)
    steps = [2, 0, 1]
    expected = pinned_reference(setting, "digits", [[[0, 1]]], 3, "--overlap=1", f"--steps={steps}")
    exponents = scale_exponents([tensor.range for tensor in load_workload("digits").tensors(setting)], 2)
    areas = []
    for i in range(2):
        areas.append(map_exchange_area(tmp_path / f"area{i}", DEPTH, VALUES, VALUES_PER_CHUNK, create=True))
        trainers.append(TrainerUnderTest(setting, i, "digits", tmp_path / f"area{i}"))
        trainers[i].ask("epoch", epoch=0, scale_exponents=exponents, phases=[{"members": 0b11}])
    first_step = 0
    for number in range(3):
        for trainer in trainers:
            ready = trainer.ask("contribute", round=number, epoch=0, phase=0)
            assert ready is not None
            assert ready["type"] == "ready"
        for trainer in trainers:
            trained = trainer.ask("train", round=number, first_step=first_step, steps=steps[number], done_ns=0)
            assert trained is not None
            assert trained["steps"] == steps[number]
        first_step += steps[number]
        for i, trainer in enumerate(trainers):
            areas[i].summed[number] = areas[1 - i].sent[number]
            areas[i].bitmaps[number] = 1 << (1 - i)
            assert trainer.ask("apply", round=number) == {
                "type": "applied",
                "round": number,
                "digest": expected["digests"][number][i],
                "parameters_digest": expected["parameters_digests"][number][i],
            }
    assert expected["parameters_digests"][0][0] != expected["parameters_digests"][0][1]
    assert expected["parameters_digests"][1][0] == expected["digests"][1][0]  # no step, so nothing on top of the mean


def test_a_trainer_process_has_low_priority_and_reports_errors(
    tmp_path: Path, trainers: list[TrainerUnderTest]
) -> None:
    setting = prepared("synthetic", tmp_path, islands=2, values=1000)
    map_exchange_area(tmp_path / "area", DEPTH, 1000, VALUES_PER_CHUNK, create=True)
    trainers.append(TrainerUnderTest(setting, 0, "synthetic", tmp_path / "area"))
    assert os.getpriority(os.PRIO_PROCESS, trainers[0].process.pid) == 19
    assert os.sched_getscheduler(trainers[0].process.pid) == os.SCHED_BATCH
    answer = trainers[0].ask("sing")
    assert answer == {"type": "error", "message": "trainer: a trainer does not know the message 'sing'"}
    assert trainers[0].process.wait(timeout=10) == 1


@pytest.mark.usefixtures("one_blas_thread")
def test_with_overlap_a_round_carries_the_state_before_its_steps(tmp_path: Path) -> None:
    """Two islands by hand: what each trained during the round is added to the mean of what both had at its start."""
    setting = prepared("digits", tmp_path, islands=2)
    workload = load_workload("digits")
    outcome = train_reference(workload, setting, [[[0, 1]]], 3, VALUES_PER_CHUNK, Pace((2, 1), overlap=True))
    trainers = [workload.island(setting, i) for i in range(2)]
    first_step = 0
    for round_number, steps in enumerate((2, 1, 2)):
        sent = [trainer.parameters().astype(np.float64) for trainer in trainers]
        for trainer in trainers:
            for step in range(first_step, first_step + steps):
                trainer.train(step)
        first_step += steps
        mean = (sent[0] + sent[1]) / 2
        for trainer, before in zip(trainers, sent, strict=True):
            trainer.load_parameters((mean + trainer.parameters() - before).astype(np.float32))
        assert len(set(outcome.digests[round_number])) == 1
        assert len(set(outcome.parameters_digests[round_number])) == 2
    # All but equal: the contributions' fixed point has 28 bits, and rounds in other places.
    for evaluation, trainer in zip(outcome.evaluations, trainers, strict=True):
        assert evaluation == pytest.approx(trainer.evaluate(), rel=1e-4)


def run_reference(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agents.reference", "--workload", "synthetic", "--islands", "3", "--seed", "2"]
    command += ["--rounds", "2", "--values", "100", "--values-per-chunk", "30", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def test_the_reference_runs_as_a_program_and_pins_its_environment(tmp_path: Path) -> None:
    unpinned = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    outputs = [
        run_reference("--schedule", "[[[0,1,2]]]", environment=environment)
        for environment in (unpinned, {**unpinned, **ENVIRONMENT})
    ]
    assert [output.returncode for output in outputs] == [0, 0], outputs[0].stderr
    setting = Setting(tmp_path, 2, 3, 100)
    expected = train_reference(load_workload("synthetic"), setting, [[[0, 1, 2]]], 2, 30)
    for output in outputs:
        assert json.loads(output.stdout)["digests"] == expected.digests


def test_the_reference_refuses_bad_input_in_one_line() -> None:
    done = run_reference("--schedule", "[[[0,7]]]", environment=dict(os.environ))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "reference: island 7 in the schedule: there are only islands 0 to 2\n"
