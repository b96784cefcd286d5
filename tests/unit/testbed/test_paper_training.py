"""The loss curves: what is trained, what a round of it costs, whether the network agrees, and what is said of them."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import testbed.paper.methods
import testbed.paper.train
from agents.pinned import ENVIRONMENT
from testbed.baselines.plain import train_plain
from testbed.errors import RunFailed, TestbedError
from testbed.paper.agreement import Agreement, agree
from testbed.paper.comparison import Planned
from testbed.paper.curves import Curve, plain_curve, plain_training
from testbed.paper.experiments import RING, schedule_key
from testbed.paper.methods import ALONE, IDEAL, RING_METHOD, SYNCHRONOUS, Method, methods
from testbed.paper.outcome import Outcome
from testbed.paper.record import Record
from testbed.paper.statements import statements
from testbed.paper.train import train_all
from testbed.plots.training import plot_curves
from testbed.run.frames import frame_payload
from testbed.run.settings import RunSettings
from tests.unit.testbed.measured import NINE, summary_of

EVERYONE = (tuple(NINE.island_ids),)
FRAMING = frame_payload(1_692_000)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Method]:
    monkeypatch.setattr(testbed.paper.methods, "TRAINED_S", 2.1)
    outcomes = {
        schedule_key(policy, memory_gb): Outcome(summary_of(time_ms, 1.8, (EVERYONE,)))
        for policy, memory_gb, time_ms in (
            *(("all-to-all", 32.0, 680.0), ("triangles", 0.0, 570.0)),
            *(("pairs", 0.0, 380.0), ("regional", 0.0, 190.0)),
        )
    }
    outcomes[RING] = Outcome({"measured": {"step_ms": 1010.0, "core_gb_per_step": 27.3}})
    return methods(NINE, outcomes)


def test_methods_have_the_times_and_bytes_that_were_measured(found: list[Method]) -> None:
    assert [method.name for method in found] == [
        "all-to-all, overlapped",
        SYNCHRONOUS,
        "triangles, overlapped",
        "pairs, overlapped",
        "regional, overlapped",
        RING_METHOD,
        ALONE,
        IDEAL,
    ]
    overlapped, synchronous, ring = found[0], found[1], found[5]
    # 0.68 s, 1.36 s and 2.04 s are 3, 6 and 10 steps.
    assert (overlapped.round_s, overlapped.steps, overlapped.rounds) == (0.68, [3, 3, 4], 3)
    assert (overlapped.round_gb, synchronous.round_s) == (pytest.approx(15.0), pytest.approx(0.88))
    assert (ring.round_s, ring.round_gb, ring.rounds) == (1.01, 27.3, 2)
    assert [method.rounds for method in found[-2:]] == [10, 10]
    assert [method.name for method in methods(NINE, {RING: Outcome(None, "", failed=True)})] == [ALONE, IDEAL]


def test_curves_of_every_method_share_seed_and_start(found: list[Method], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    drawn = []
    for method in (found[1], found[6]):
        outcome = train_plain(plain_training(9, FRAMING, method, "digits", 3))
        drawn.append(plain_curve(method, "digits", outcome))
    assert [(curve.method, curve.networked) for curve in drawn] == [(SYNCHRONOUS, False), (ALONE, False)]
    first, alone = drawn
    assert first.points[0]["loss"] == alone.points[0]["loss"]
    assert [point["rounds"] for point in first.points] == [0, 1, 2]
    assert [point["steps"] for point in first.points] == [0, 1, 2]
    assert first.points[-1]["seconds"] == pytest.approx(1.76)
    assert first.points[-1]["gb"] == pytest.approx(30.0)
    assert first.points[-1]["worst_loss"] < first.points[0]["worst_loss"]
    assert first.points[-1]["worst_loss"] < alone.points[2]["worst_loss"]


def test_digests_agree_only_if_every_one_does() -> None:
    islands = ("nyc", "chi")
    rounds = [
        {
            "applied": {
                "chi": {"digest": "a", "parameters_digest": "c"},
                "nyc": {"digest": "a", "parameters_digest": "b"},
            }
        }
    ]
    plain = {"digests": [["a", "a"]], "parameters_digests": [["b", "c"]]}
    assert agree(rounds, plain, islands)
    assert not agree(rounds, plain, islands[::-1])
    assert not agree(rounds, {**plain, "digests": [["a", "b"]]}, islands)
    assert not agree(rounds, {"digests": [["a", "a"]] * 2, "parameters_digests": [["b", "c"]] * 2}, islands)


def curve(method: str, *points: tuple[float, float, float], steps_per_s: float = 5.0) -> Curve:
    """Points: seconds, loss of the worst island, GB."""
    given = [
        {"rounds": number, "steps": steps_per_s * at, "seconds": at, "worst_loss": loss, "gb": gb}
        for number, (at, loss, gb) in enumerate(points)
    ]
    return Curve("digits", method, False, given)


RING_CURVE = Curve(
    "digits",
    RING_METHOD,
    True,
    [
        {"rounds": 0, "steps": 0, "seconds": 0, "worst_loss": 2.3, "gb": 0},
        {"rounds": 20, "steps": 20, "seconds": 20, "worst_loss": 0.5, "gb": 540},
    ],
)


def method(policy: str, staleness_ms: float | None) -> Method:
    return Method(f"{policy}, overlapped", [], 0.5, 1.0, [1], overlap=True, policy=policy, staleness_ms=staleness_ms)


def test_statements_say_what_contradicts_the_claim_as_well() -> None:
    triangles = curve("triangles, overlapped", (0, 2.3, 0), (4, 0.5, 60), (20, 0.3, 300))
    pairs = curve("pairs, overlapped", (0, 2.3, 0), (20, 0.9, 100))
    agreements = [Agreement("digits", "triangles, overlapped", 4, True, ""), Agreement("digits", "pairs", 4, False, "")]
    synchronous = curve(SYNCHRONOUS, (0, 2.3, 0), (20, 0.6, 2000), steps_per_s=1.1)
    told = statements(
        [RING_CURVE, synchronous, triangles, pairs], agreements, [method("triangles", 1271), method("pairs", 1999)]
    )
    said = "in the first 4 rounds, runs over the network"
    assert told == [
        f"digits: {line}"
        for line in (
            f"{said} gave every island the plain process's parameters, bit for bit: triangles, overlapped",
            f"{said} DID NOT GIVE every island the plain process's parameters, bit for bit: pairs",
            f"trained over the network from end to end: {RING_METHOD}",
            f"loss of the worst island after 20 s: triangles, overlapped 0.300; {RING_METHOD} 0.500; {SYNCHRONOUS} "
            "0.600; pairs, overlapped 0.900",
            "schedules that are less stale by T·(A + 1/2) end with less loss: triangles, pairs",
            f"{SYNCHRONOUS} does not reach the loss of 0.500 that ring all-reduce has after 20 s",
            "triangles, overlapped reaches the loss of 0.500 that ring all-reduce has after 20.0 s within 4.0 s, 5.0 "
            "times sooner, with 60 GB on core links in place of 540",
            "pairs, overlapped does not reach the loss of 0.500 that ring all-reduce has after 20 s",
            "published is about 5 times the throughput; here overlapped islands do 5.0 times the steps, and reach the "
            "loss where ring all-reduce ends 5.0 to 5.0 times sooner: no less than published",
        )
    ]


@pytest.mark.parametrize(
    ("at_s", "said"),
    [
        ((4.0, 4.0), "no less than published"),
        ((4.0, 8.0), "as published with some schedules only"),
        ((8.0, 10.0), "less than published"),
    ],
)
def test_the_published_factor_is_judged_by_all_schedules(at_s: tuple[float, float], said: str) -> None:
    curves = [
        curve(f"{policy}, overlapped", (0, 2.3, 0), (at, 0.4, 60), (20, 0.3, 300))
        for policy, at in zip(("triangles", "pairs"), at_s, strict=True)
    ]
    assert statements([RING_CURVE, *curves], [], [])[-1].endswith(f"times sooner: {said}")


def test_more_steps_that_bring_nothing_are_said() -> None:
    told = statements([RING_CURVE, curve("pairs, overlapped", (0, 2.3, 0), (20, 0.9, 100), steps_per_s=5.8)], [], [])
    assert told[-1] == (
        "digits: published is about 5 times the throughput; here overlapped islands do 5.8 times the steps, and yet "
        "none is sooner where ring all-reduce ends: more steps are not more learning"
    )


def test_an_order_that_is_not_the_planned_one_is_said() -> None:
    curves = [curve("triangles, overlapped", (20, 0.4, 1)), curve("regional, overlapped", (20, 0.3, 1))]
    told = statements(curves, [], [method("triangles", 1271), method("regional", None)])
    assert (
        "digits: the order of the schedules by T·(A + 1/2), triangles, regional, is not the one by loss, regional, "
        "triangles" in told
    )


def test_what_fails_or_is_refused_leaves_the_rest(
    planned: Planned, found: list[Method], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run over the network fails, one workload cannot be had; the other's plain curves are still drawn."""

    def refuse(name: str) -> object:
        if name == "characters":
            raise ValueError("workload characters: needs PyTorch")
        return object()

    def no_network(*_arguments: object) -> Any:
        raise RunFailed("an edge ended")

    class Trained:
        is_over = True

        def __init__(self, training: Any) -> None:
            self._rounds = training.rounds

        def __enter__(self) -> "Trained":
            return self

        def __exit__(self, *_error: object) -> None:
            pass

        def outcome(self) -> dict[str, Any]:
            if self._rounds == found[3].rounds:
                raise RunFailed("out of memory")
            return {"curve": {"0": [{"loss": 2.3}] * 9}, "evaluations": [{"loss": 0.5}] * 9}

    for name, stand_in in (
        ("load_workload", refuse),
        ("check_agreement", no_network),
        ("ring_curve", no_network),
        ("PlainRun", Trained),
        ("methods", lambda *_arguments: found),
    ):
        monkeypatch.setattr(testbed.paper.train, name, stand_in)
    record = Record(tmp_path, "nine-city", planned)
    train_all(NINE, RunSettings(), record, Console(quiet=True))
    networked = [each.name for each in found if each.policy]
    assert {name: text for name, text in record.failures.items() if "over the network" in name} == {
        f"training digits, {name}, over the network": "an edge ended" for name in networked
    }
    assert record.failures["training digits, pairs, overlapped"] == "out of memory"
    assert record.refused == {"training characters": "workload characters: needs PyTorch"}
    drawn = {name for name in (each.name for each in found) if name not in (RING_METHOD, "pairs, overlapped")}
    assert {each.method for each in record.curves} == drawn
    assert not record.ok


def test_a_plot_is_written_in_the_format_of_its_ending(tmp_path: Path) -> None:
    curves = [
        RING_CURVE,
        curve("pairs, overlapped", (0, 2.3, 0), (20, 0.9, 100)),
        curve(ALONE, (0, 2.3, 0), (20, 1, 0)),
    ]
    plot_curves(curves, tmp_path / "curves.svg")
    drawn = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    assert drawn.startswith("<?xml")
    with pytest.raises(TestbedError, match="cannot be written"):
        plot_curves(curves, tmp_path / "none" / "curves.svg")
