"""The commands that begin and end a recording of frames."""

from collections.abc import Callable, Mapping
from typing import Any

from testbed.capture.captures import Captures
from testbed.errors import RunFailed, TestbedError
from testbed.live.server import Command


def capture_commands(captures: Captures) -> dict[str, Command]:
    """Commands by name."""

    def start(request: Mapping[str, Any]) -> dict[str, Any]:
        wanted, snap_bytes = request.get("points"), request.get("capture_bytes")
        if not isinstance(wanted, list) or not wanted or not all(isinstance(name, str) for name in wanted):
            raise TestbedError('capture_start wants "points", a list of all, core, access and NODE:LINK')
        if not isinstance(snap_bytes, int) or isinstance(snap_bytes, bool) or snap_bytes < 0:
            raise TestbedError(f"capture_bytes: {snap_bytes!r} is not a whole number of at least 0")
        return _answered(lambda: captures.start(wanted, snap_bytes))

    return {"capture_start": start, "capture_stop": lambda _request: _answered(captures.stop)}


def _answered(act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A recording that fails is no reason for the run to end."""
    try:
        return act()
    except RunFailed as error:
        raise TestbedError(str(error)) from error
