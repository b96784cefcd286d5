"""How much the islands trained, from the records of rounds."""

from types import SimpleNamespace
from typing import Any

import pytest

from testbed.run.settings import TrainingSettings
from testbed.run.training_summary import training_summary
from testbed.scale import Scale

MS = 1_000_000


def records(*rounds: tuple[int, int, int]) -> Any:
    """Rounds of (steps, compute ms, end ms); training began at 100 ms."""
    return [
        SimpleNamespace(
            steps=steps,
            trained={"nyc": {"steps": steps, "compute_ns": compute * MS}},
            training_began_ns=100 * MS,
            ended_ns=end * MS,
        )
        for steps, compute, end in rounds
    ]


def test_the_busy_fraction_is_of_the_time_from_first_training_to_last_average() -> None:
    summary = training_summary(records((2, 100, 900), (3, 90, 1_500), (0, 0, 2_100)), TrainingSettings(True), Scale())
    assert summary == {
        "overlap": 1,
        "step_ms": 200.0,
        "steps": 5,
        "elapsed_ms": 2_000.0,
        "steps_per_s": 2.5,
        "busy_fraction": 0.5,
        "compute_ms": {"median": 40.0, "max": 50.0},
    }


def test_times_are_undilated_and_untimed_steps_have_no_busy_fraction() -> None:
    dilated = training_summary(records((4, 400, 4_100)), TrainingSettings(), Scale(time_dilation=2.0))
    assert dilated["elapsed_ms"] == 2_000.0
    assert dilated["busy_fraction"] == pytest.approx(0.4)
    assert dilated["compute_ms"]["max"] == 50.0
    untimed = training_summary(records((4, 400, 4_100)), TrainingSettings(step_ms=0.0), Scale())
    assert untimed["busy_fraction"] is None
