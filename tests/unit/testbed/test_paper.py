"""The comparison: which figures are published and fitted, what is asked of the measured ones, and the curves."""

import subprocess
import sys
from typing import Any

import pytest

import testbed.paper.training
from agents.pinned import ENVIRONMENT
from testbed.paper.comparison import rows
from testbed.paper.experiments import GLOO_RING, RING, Experiment, Outcome, carry_out, experiments, schedule_key
from testbed.paper.row import Row
from testbed.paper.training import TRAINED_S, Curve, curves, methods, statements
from testbed.run.frames import frame_payload
from testbed.scale import Scale
from testbed.topology.load import load_topology

NINE = load_topology("nine-city")


def summary_of(time_ms: float, lifetime: float | None, cliques: Any = ((("nyc", "chi"),),)) -> dict[str, Any]:
    return {
        "predicted": {"round_time_ms": 400.0, "mean_divergence_lifetime_rounds": 1.8, "objective_ms": 920.0},
        "measured": {
            "round_time_ms": {"median": time_ms},
            "round_time_ratio": {"median": 1.0},
            "mean_divergence_lifetime_rounds": lifetime,
        },
        "training": {"steps_per_s": 4.9, "busy_fraction": 0.98},
        "memory": {"measured_peak_gb": 0.43},
        "multicast": {"core_bytes": 30_000_000},
        "rounds": 2,
        "rate_scale": 1e-3,
        "cliques": cliques,
    }


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """As if every run had taken what was planned, but one round time that is 6 % off."""
    found = {experiment.key: Outcome(summary_of(400.0, 1.8)) for experiment in experiments(Scale(), "auto", 1)}
    everyone = (tuple(NINE.island_ids),)
    for key, time_ms, lifetime in (
        (schedule_key("all-to-all", 32.0), 680.0, 1.0),
        (schedule_key("triangles", 0.0), 570.0, 1.75),
        (schedule_key("triangles", 32.0), 532.0 * 1.06, 1.75),
    ):
        found[key] = Outcome(summary_of(time_ms, lifetime, (everyone,)))
    found[schedule_key("all-to-all", 0.0)] = Outcome(None, "policy all-to-all cannot run with 0 GB")
    times = {"exchange_ms": {"median": 850.0, "mean": 810.0}, "step_ms": 1010.0}
    reduced = {**times, "idle_fraction": 0.8, "steps_per_s": 0.99}
    found[RING] = found[GLOO_RING] = Outcome({"measured": reduced})
    return found


@pytest.fixture(scope="module")
def compared(outcomes: dict[str, Outcome]) -> list[Row]:
    return rows(NINE, outcomes)


def test_only_known_figures_are_published_and_only_fitted_ones_are_called_so(compared: list[Row]) -> None:
    found = {row.quantity: row for row in compared}
    published = {quantity: row.published for quantity, row in found.items() if row.published is not None}
    assert published == {
        "triangles at 0 GB: feasible": True,
        "triangles at 0 GB: round time T, ms": 565.0,
        "all-to-all at 32 GB: feasible": True,
        "all-to-all at 32 GB: round time T, ms": 676.0,
        "ring all-reduce: islands idle": 0.8,
        "steps per second: overlapped training against ring all-reduce": 5.0,
        "staleness of all-to-all at 32 GB, s": 1.0,
    }
    assert {quantity for quantity, row in found.items() if row.fitted} == {
        "triangles at 0 GB: round time T, ms",
        "triangles at 0 GB: staleness T·(A + 1/2), ms",
        "all-to-all at 32 GB: round time T, ms",
        "all-to-all at 32 GB: staleness T·(A + 1/2), ms",
        "staleness of all-to-all at 32 GB, s",
    }


def test_planned_figures_are_those_of_the_reference(compared: list[Row]) -> None:
    planned = {row.quantity: row.planned for row in compared}
    for quantity, value in {
        "all-to-all at 0 GB: feasible": False,
        "triangles at 0 GB: round time T, ms": 565.1,
        "all-to-all at 32 GB: staleness T·(A + 1/2), ms": 1013.5,
        "regional at 32 GB: divergence lifetime A, rounds": None,
        "all-to-all: memory from which it is less stale than triangles without memory, GB": 0.2725,
        "all-to-all: memory from which its round takes no longer than with 32 GB, GB": 0.4127,
        "synchronous SGD, unicast, summed at the host: exchange, ms": 1487.8,
        "ring all-reduce: exchange, ms": 802.64,
        "ring all-reduce: exchange if every step waits for all, ms": 1712.64,
        "ring all-reduce: islands idle": 0.8005,
        "steps per second: overlapped training against ring all-reduce": 5.013,
    }.items():
        assert planned[quantity] == (value if value is None else pytest.approx(value, rel=1e-3)), quantity


def test_a_measured_time_that_is_off_fails_the_comparison(compared: list[Row]) -> None:
    wrong = {row.quantity: row for row in compared if not row.ok}
    late = wrong["triangles at 32 GB: round time T, ms"]
    assert late.deviation == pytest.approx(0.06, rel=0.01)
    assert "triangles at 0 GB: round time T, ms" not in wrong
    assert "all-to-all at 0 GB: feasible" not in wrong
    assert not Row("feasible", planned=True, measured=False).ok
    assert not Row("time", planned=1.0, measured=None, within=0.05).ok


def test_a_run_that_was_late_is_done_again_and_what_cannot_run_is_said(tmp_path: Any) -> None:
    from rich.console import Console  # noqa: PLC0415

    quiet = Console(quiet=True)
    ratios = iter([1.2, 1.01])

    def late_at_first(settings: Any, _console: Console) -> dict[str, Any]:
        summary = summary_of(500.0, 1.0)
        summary["measured"]["round_time_ratio"] = {"median": next(ratios)}
        return summary

    experiment = experiments(Scale(), "auto", 1)[0]
    outcome = carry_out(Experiment("late", experiment.settings, late_at_first), tmp_path, quiet)
    assert outcome.measured("round_time_ratio", "median") == 1.01
    assert next(ratios, None) is None

    impossible = next(each for each in experiments(Scale(), "auto", 1) if each.key == schedule_key("all-to-all", 0.0))
    outcome = carry_out(impossible, tmp_path, quiet)
    assert outcome.summary is None
    assert "cannot run with 0 GB" in outcome.trouble
    assert list(tmp_path.iterdir()) == []


def test_a_plot_without_curves_is_refused() -> None:
    command = [sys.executable, "-P", "-m", "testbed", "paper", "--plot", "curves.png"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "testbed: --plot draws the curves of --training: give both\n")


def test_curves_of_every_method_share_seed_and_start(
    outcomes: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(testbed.paper.training, "TRAINED_S", 2.1)
    found = methods(NINE, outcomes, 200.0)
    assert [method.name for method in found] == [
        "all-to-all, overlapped",
        "synchronous, multicast",
        "triangles, overlapped",
        "pairs, overlapped",
        "regional, overlapped",
        "synchronous, ring all-reduce",
        "islands alone",
        "one ideal machine",
    ]
    overlapped, synchronous = found[0], found[1]
    assert (overlapped.round_s, overlapped.steps) == (0.68, [3, 3, 4])
    assert (overlapped.round_gb, synchronous.round_s) == (pytest.approx(15.0), pytest.approx(0.88))
    drawn = curves(NINE, frame_payload(1_692_000), [synchronous, found[6]], "digits", 3)
    assert [curve.method for curve in drawn] == ["synchronous, multicast", "islands alone"]
    assert drawn[0].points[0]["loss"] == drawn[1].points[0]["loss"]
    assert [point["rounds"] for point in drawn[0].points] == [0, 1, 2]
    assert drawn[0].points[-1]["worst_loss"] < drawn[0].points[0]["worst_loss"]
    assert drawn[0].points[-1]["worst_loss"] < drawn[1].points[2]["worst_loss"]


def test_statements_say_what_contradicts_the_claim_as_well() -> None:
    def curve(method: str, *points: tuple[float, float]) -> Curve:
        return Curve("digits", method, [{"seconds": at, "worst_loss": loss} for at, loss in points])

    ring = curve("synchronous, ring all-reduce", (0, 2.3), (TRAINED_S, 0.5))
    told = statements(
        [ring, curve("triangles, overlapped", (0, 2.3), (TRAINED_S / 5, 0.5)), curve("pairs, overlapped", (0, 2.3))]
    )
    assert told[0].startswith("digits: loss of the worst island after 20 s: synchronous, ring all-reduce 0.500")
    assert "triangles, overlapped reaches the loss that ring all-reduce has after 20 s within 4 s, 5.0 times" in told[1]
    assert "pairs, overlapped does not reach" in told[2]
