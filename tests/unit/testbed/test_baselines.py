"""The baselines' figures and refusals; tests/netns/testbed has the real thing."""

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from scheduler.ring import Ring
from testbed.baselines.plain import PlainTraining, train_plain
from testbed.baselines.ring import measured, predicted, run_ring
from testbed.errors import RunFailed, TestbedError
from testbed.run.settings import RunSettings, TrainingSettings
from testbed.scale import Scale

MS = 1_000_000


def test_idle_fractions_follow_from_the_times() -> None:
    figures = predicted(Ring(("a", "b", "c"), 800.0, 1800.0), 200.0)
    assert (figures["pipelined_idle_fraction"], figures["synchronous_idle_fraction"]) == (0.8, 0.9)


def test_first_steps_are_not_counted_and_times_are_undilated() -> None:
    settings = RunSettings(training=TrainingSettings(), scale=Scale(time_dilation=2.0))
    reports = [
        {"exchanges_ns": [9_000 * MS, 9_000 * MS, 1_600 * MS, 1_400 * MS], "steps_ns": [1, 1, 2_000 * MS, 1_800 * MS]},
        {"exchanges_ns": [9_000 * MS, 9_000 * MS, 1_500 * MS, 1_700 * MS], "steps_ns": [1, 1, 1_900 * MS, 2_100 * MS]},
    ]
    figures = measured(reports, settings)
    assert figures["exchange_ms"] == {"median": 825.0, "max": 850.0, "mean": 775.0}
    assert figures["step_ms"] == 975.0
    assert figures["idle_fraction"] == pytest.approx(775 / 975)
    assert figures["steps_per_s"] == pytest.approx(1000 / 975)


def test_too_few_steps_are_refused(tmp_path: Path) -> None:
    settings = RunSettings(policy="ring-tcp", rounds=2, out=tmp_path / "out")
    with pytest.raises(TestbedError, match="--steps 2: the first 2 are not counted"):
        run_ring(settings, Console(quiet=True))
    assert not (tmp_path / "out").exists()


def test_plain_training_says_what_went_wrong() -> None:
    with pytest.raises(RunFailed, match="unknown workload 'chess'"):
        train_plain(PlainTraining("chess", 2, 1, 100, 10, [[[0, 1]]], 1))


def test_the_command_names_its_baselines() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "testbed", "baseline", "ring-token"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "ring-tcp" in done.stderr
    assert "ring-gloo" in done.stderr
