"""Recordings are begun and ended over the control socket; what is no request is refused, with the reason."""

from collections.abc import Sequence
from typing import Any

import pytest

from testbed.errors import RunFailed, TestbedError
from testbed.live.capture_commands import capture_commands


class Recorder:
    """Stands for the recordings of a run."""

    def __init__(self) -> None:
        self.started: list[tuple[Sequence[str], int]] = []

    def start(self, wanted: Sequence[str], snap_bytes: int) -> dict[str, Any]:
        self.started.append((wanted, snap_bytes))
        return {"recording": len(self.started)}

    def stop(self) -> dict[str, Any]:
        raise RunFailed("the recorder has ended")


def test_a_recording_is_begun() -> None:
    recorder = Recorder()
    commands = capture_commands(recorder)  # type: ignore[arg-type]
    assert commands["capture_start"]({"points": ["core", "nyc:nyc-lon"], "capture_bytes": 0}) == {"recording": 1}
    assert recorder.started == [(["core", "nyc:nyc-lon"], 0)]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"capture_bytes": 128}, "points"),
        ({"points": [], "capture_bytes": 128}, "points"),
        ({"points": "core", "capture_bytes": 128}, "points"),
        ({"points": [1], "capture_bytes": 128}, "points"),
        ({"points": ["core"]}, "capture_bytes"),
        ({"points": ["core"], "capture_bytes": True}, "capture_bytes"),
        ({"points": ["core"], "capture_bytes": -1}, "capture_bytes"),
    ],
)
def test_what_is_no_request_is_refused(request_: dict[str, Any], message: str) -> None:
    recorder = Recorder()
    with pytest.raises(TestbedError, match=message):
        capture_commands(recorder)["capture_start"](request_)  # type: ignore[arg-type]
    assert not recorder.started


def test_a_recording_that_fails_is_no_end_of_the_run() -> None:
    with pytest.raises(TestbedError, match="recorder has ended"):
        capture_commands(Recorder())["capture_stop"]({})  # type: ignore[arg-type]
