"""Settings go into the events and come back as they were, whatever they are made of."""

import json
from pathlib import Path

from testbed.live.settings import LinkSetting
from testbed.run.settings import (
    EdgeSettings,
    PolicyChange,
    RunSettings,
    TrainingSettings,
    settings_from_json,
    settings_to_json,
)
from testbed.scale import Scale


def test_settings_come_back_as_they_were() -> None:
    settings = RunSettings(
        policy="pairs",
        training=TrainingSettings(overlap=True, step_ms=50.0),
        scale=Scale(1e-2, 4.0),
        policy_schedule=(PolicyChange("triangles", round=3), PolicyChange("mine.py:Mine", at_ms=10.0, memory_gb=8.0)),
        edge=EdgeSettings(memory_gb=1.0, late="drop"),
        link_settings=(LinkSetting("nyc-lon", {"loss": "1%"}),),
        scenario=Path("/somewhere/cable-cut.toml"),
        capture=("core",),
        out=Path("/somewhere/run"),
    )
    for each in (RunSettings(), settings):
        assert settings_from_json(json.loads(json.dumps(settings_to_json(each)))) == each
