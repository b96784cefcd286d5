"""What a run shows of itself, from its first second on."""

from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.live.running import LiveRun, first_status
from testbed.run.conductor import Conductor
from testbed.run.settings import RunSettings


def test_status_goes_with_the_run() -> None:
    conductor = Conductor(5)
    live = LiveRun(first_status(RunSettings(rounds=5), "cafe0123", Path("/somewhere")), conductor)
    status = live.commands["status"]({})
    assert (status["run"], status["state"], status["round"]) == ("cafe0123", "planning", None)
    assert (status["policy"], status["rounds"], status["last_round"]) == ("all-to-all", 5, 4)
    live.enter("building")
    live.learn(policy="pairs", round=2)
    assert live.commands["status"]({}) == {**status, "state": "building", "policy": "pairs", "round": 2}
    live.enter("running")
    conductor.pause()
    assert live.commands["status"]({})["state"] == "pausing"
    conductor.stop(3)
    assert live.commands["status"]({})["last_round"] == 3


def test_what_cannot_be_done_yet_is_refused_with_the_reason() -> None:
    live = LiveRun({}, Conductor(5))
    for name in ("policy_set", "link_set", "stop"):
        with pytest.raises(TestbedError, match="still planning"):
            live.commands[name]({})
