"""The comparison: which figures are published and fitted, what is asked of the measured ones, and what is kept."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from testbed.errors import RunFailed, TestbedError
from testbed.paper.comparison import Planned, rows
from testbed.paper.experiments import GLOO_RING, OVERLAPPED, RING, Experiment, carry_out, experiments, schedule_key
from testbed.paper.outcome import Outcome
from testbed.paper.record import Record
from testbed.paper.row import Row
from testbed.run.settings import RunSettings
from testbed.scale import Scale
from tests.unit.testbed.measured import summary_of

QUIET = Console(quiet=True)
EXPERIMENTS = experiments(Scale(), "auto", 1)


@pytest.fixture(scope="module")
def outcomes(planned: Planned) -> dict[str, Outcome]:
    """As if every run had taken what was planned, but one round time that is 6 % off."""
    found = {experiment.key: Outcome(summary_of(400.0, 1.8)) for experiment in EXPERIMENTS}
    for (policy, memory_gb), schedule in planned.schedules.items():
        lifetime = None if policy == "regional" else schedule.mean_divergence_lifetime_rounds
        found[schedule_key(policy, memory_gb)] = Outcome(summary_of(schedule.round_time_ms * 1.01, lifetime))
    for key, schedule in planned.exchanges.items():
        found[key] = Outcome(summary_of(schedule.round_time_ms * 1.01, 1.0))
    found[schedule_key("triangles", 32.0)] = Outcome(summary_of(532.0 * 1.06, 1.75))
    found[schedule_key("all-to-all", 0.0)] = Outcome(None, "policy all-to-all cannot run with 0 GB")
    times = {"exchange_ms": {"median": 850.0, "mean": 810.0}, "step_ms": 1010.0, "dropped_frames": 7}
    reduced = {**times, "idle_fraction": 0.8, "steps_per_s": 0.99}
    found[RING] = found[GLOO_RING] = Outcome({"measured": reduced})
    return found


@pytest.fixture(scope="module")
def compared(planned: Planned, outcomes: dict[str, Outcome]) -> list[Row]:
    return rows(planned, outcomes)


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
        "synchronous SGD, multicast, summed at the host: exchange, ms": 1214.5,
        "synchronous SGD, unicast, summed at the host: exchange, ms": 1487.8,
        "ring all-reduce: exchange, ms": 802.64,
        "ring all-reduce: exchange if every step waits for all, ms": 1712.64,
        "ring all-reduce: islands idle": 0.8005,
        "steps per second: overlapped training against ring all-reduce": 5.013,
    }.items():
        assert planned[quantity] == (value if value is None else pytest.approx(value, rel=1e-3)), quantity


def test_a_measured_time_that_is_off_fails_the_comparison(compared: list[Row]) -> None:
    wrong = {row.quantity: row for row in compared if not row.ok}
    assert set(wrong) == {"triangles at 32 GB: round time T, ms"}
    late = wrong["triangles at 32 GB: round time T, ms"]
    assert late.deviation == pytest.approx(0.06, rel=0.01)
    assert not Row("feasible", planned=True, measured=False).ok
    assert not Row("time", planned=1.0, measured=None, within=0.05).ok
    assert not Row("lifetime", planned=None, measured=None, failure="links failed").ok


def test_every_measured_row_is_bounded_where_a_plan_is_to_hold(compared: list[Row]) -> None:
    bounds = {row.quantity: row.within for row in compared if row.within is not None}
    assert {within for name, within in bounds.items() if name.endswith(("T, ms", "exchange, ms"))} == {0.05}
    assert {within for name, within in bounds.items() if name.endswith("A, rounds")} == {0.01}
    # Eight feasible schedules less one, the two that the search found, four exchanges, and the time that islands train.
    assert len(bounds) == 2 * (7 + 2) + 4 + 1


def test_a_failed_run_fails_the_rows_that_need_it_and_no_others(
    planned: Planned, outcomes: dict[str, Outcome], compared: list[Row]
) -> None:
    for key, lines in (
        (schedule_key("pairs", 0.0), 4),
        (schedule_key("search", 32.0), 3),
        (schedule_key("all-to-all", 32.0, "unicast", "host"), 2),
        (RING, 3),
        (GLOO_RING, 2),
        (OVERLAPPED, 2),
    ):
        failed = rows(planned, {**outcomes, key: Outcome(None, "an edge ended", failed=True)})
        assert [row.quantity for row in failed] == [row.quantity for row in compared]
        wrong = [row for row in failed if row.failure]
        assert len(wrong) == lines, key
        assert {(row.ok, row.measured, row.failure) for row in wrong} == {(False, None, "an edge ended")}
    assert {row.ok for row in rows(planned, {**outcomes, GLOO_RING: Outcome(None, "needs PyTorch")})[-8:]} == {True}


def attempt_at(settings: RunSettings, figures: Any, dilations: list[float]) -> dict[str, Any]:
    """A run whose times and untrusted rounds are the next of `figures`, or that fails with the next of them."""
    dilations.append(settings.scale.time_dilation)
    figure = next(figures)
    if isinstance(figure, Exception):
        raise figure
    time_ms, untrusted = figure
    summary = summary_of(time_ms, 1.0)
    summary["untrusted_rounds"] = [{"round": number, "reasons": ["late"]} for number in range(untrusted)]
    return summary


@pytest.mark.parametrize(
    ("figures", "dilations", "measured"),
    [
        ([(410.0, 6)], [1.5], 410.0),  # near enough
        ([(500.0, 0)], [1.5], 500.0),  # off, and no fault of the machine: so it is
        ([(500.0, 6), (405.0, 2)], [1.5, 3.0], 405.0),
        ([(500.0, 6), RunFailed("an edge ended"), (410.0, 6)], [1.5, 3.0, 6.0], 410.0),
        ([RunFailed("an edge ended"), (405.0, 2)], [1.5, 3.0], 405.0),
        ([(500.0, 6), (450.0, 6), (430.0, 6), RunFailed("an edge ended")], [1.5, 3.0, 6.0, 12.0], 430.0),
    ],
)
def test_a_run_that_the_machine_was_too_slow_for_is_done_again_more_slowly(
    figures: list[Any], dilations: list[float], measured: float, tmp_path: Path
) -> None:
    left, done = iter(figures), list[float]()
    settings = RunSettings(scale=Scale(time_dilation=1.5))
    experiment = Experiment("late", settings, lambda given, _console: attempt_at(given, left, done))
    outcome = carry_out(experiment, tmp_path, QUIET)
    assert next(left, None) is None
    assert done == dilations
    assert outcome.measured("round_time_ms", "median") == measured
    assert [attempt.time_dilation for attempt in outcome.attempts] == dilations
    assert [attempt.trouble for attempt in outcome.attempts].count("an edge ended") == sum(
        isinstance(figure, Exception) for figure in figures
    )
    assert not outcome.failed


def test_what_fails_each_time_has_failed_and_what_cannot_run_is_refused(tmp_path: Path) -> None:
    left, done = iter([RunFailed("no"), OSError("disk full"), RunFailed("an edge ended")]), list[float]()
    experiment = Experiment("never", RunSettings(), lambda given, _console: attempt_at(given, left, done), attempts=3)
    outcome = carry_out(experiment, tmp_path, QUIET)
    assert (outcome.summary, outcome.failure, len(outcome.attempts)) == (None, "an edge ended", 3)

    refused = iter([TestbedError("needs PyTorch")])
    experiment = Experiment("gloo", RunSettings(), lambda given, _console: attempt_at(given, refused, done))
    outcome = carry_out(experiment, tmp_path, QUIET)
    assert (outcome.failed, outcome.trouble, outcome.attempts) == (False, "needs PyTorch", ())

    impossible = next(each for each in EXPERIMENTS if each.key == schedule_key("all-to-all", 0.0))
    outcome = carry_out(impossible, tmp_path, QUIET)
    assert (outcome.summary, outcome.failed) == (None, False)
    assert "cannot run with 0 GB" in outcome.trouble
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("baseline", "attempts"), [("ring-tcp", 2), ("ring-gloo", 1)])
def test_a_ring_that_is_slower_than_planned_is_done_again_if_it_has_a_plan(
    baseline: str, attempts: int, tmp_path: Path
) -> None:
    means = iter([900.0, 810.0])

    def run(_settings: RunSettings, _console: Console) -> dict[str, Any]:
        return {
            "baseline": baseline,
            "steps": 14,
            "predicted": {"pipelined_ms": 800.0},
            "measured": {"exchange_ms": {"mean": next(means)}, "idle_fraction": 0.8},
        }

    outcome = carry_out(Experiment("ring", RunSettings(), run, attempts=2), tmp_path, QUIET)
    assert len(outcome.attempts) == attempts
    assert outcome.measured("exchange_ms", "mean") == (810.0 if attempts == 2 else 900.0)
    assert {attempt.untrusted_rounds for attempt in outcome.attempts} == {None}


def test_overlapped_islands_that_wait_are_a_reason_to_do_it_again(tmp_path: Path) -> None:
    busy = iter([0.9, 0.99])

    def run(_settings: RunSettings, _console: Console) -> dict[str, Any]:
        summary = summary_of(401.0, 1.0)
        summary["training"] = {"busy_fraction": next(busy), "steps_per_s": 4.9}
        summary["untrusted_rounds"] = [{"round": 0, "reasons": ["late"]}]
        return summary

    outcome = carry_out(Experiment("overlapped", RunSettings(), run), tmp_path, QUIET)
    assert outcome.note == "with --time-dilation 2"
    assert [attempt.deviation for attempt in outcome.attempts] == [pytest.approx(0.1), pytest.approx(0.01)]


def test_what_has_been_measured_is_on_disk_before_the_next_run(
    planned: Planned, outcomes: dict[str, Outcome], tmp_path: Path
) -> None:
    record = Record(tmp_path, "nine-city", planned)
    key = schedule_key("triangles", 0.0)
    record.outcome(key, outcomes[key])
    kept = json.loads((tmp_path / "paper.json").read_text(encoding="utf-8"))
    measured = {row["quantity"]: (row["measured"], row["ok"]) for row in kept["rows"]}
    assert measured["triangles at 0 GB: round time T, ms"] == (pytest.approx(570.7, rel=1e-3), True)
    assert measured["pairs at 0 GB: round time T, ms"] == (None, False)
    assert (kept["complete"], kept["ok"], [run["run"] for run in kept["runs"]]) == (False, False, [key])

    for other, outcome in outcomes.items():
        record.outcome(other, outcome)
    record.outcome(schedule_key("triangles", 32.0), Outcome(summary_of(532.0, 1.75)))
    assert not record.ok
    record.finish()
    assert record.ok
    record.fail("training digits", "the disk is full")
    kept = json.loads((tmp_path / "paper.json").read_text(encoding="utf-8"))
    assert (kept["complete"], kept["ok"]) == (True, False)
    assert kept["not_run"]["training digits"] == "the disk is full"
    assert [path.name for path in tmp_path.iterdir()] == ["paper.json"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--plot", "curves.png"], "--plot draws the curves of --training: give both"),
        (["--training", "--plot", "curves.doc"], "--plot curves.doc: no plot ends so; use .png, .svg or .pdf"),
        (["--training", "--plot", "none/c.png"], "--plot none/c.png: there is no directory {}/none; make it first"),
    ],
)
def test_a_plot_that_cannot_be_is_refused_before_anything_runs(options: list[str], said: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "testbed", "paper", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"testbed: {said.format(tmp_path)}\n")
    assert list(tmp_path.iterdir()) == []
