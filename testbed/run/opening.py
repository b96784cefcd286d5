"""A run's first moments: its mark on the machine and its control socket, before anything that takes time.

Loading what plans and builds a network takes about a second: whoever looks at a run sees it before that.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from testbed.live.protocol import socket_path
from testbed.live.running import LiveRun, first_status
from testbed.live.server import ControlServer
from testbed.run.conductor import Conductor
from testbed.run.machine import check_root
from testbed.run.settings import RunSettings
from testbed.run.state import RunState, marked_run


@dataclass(frozen=True)
class OpenRun:
    """A run that others can see. `directory` is where its run directory shall be; `at_end` is closed after all else."""

    settings: RunSettings
    state: RunState
    directory: Path
    conductor: Conductor
    live: LiveRun
    at_end: ExitStack = field(default_factory=ExitStack)


@contextmanager
def opened(settings: RunSettings) -> Iterator[OpenRun]:
    """Mark a run and open its control socket; on the way out nothing of it remains. Raises TestbedError or OSError."""
    check_root()
    directory = choose_run_directory(settings.out, settings.policy)
    at_end = ExitStack()
    with marked_run(directory, at_end.close) as state:
        conductor = Conductor(settings.rounds)
        live = LiveRun(first_status(settings, state.run_id, directory), conductor)
        server = ControlServer(socket_path(state.directory), state.run_id, live.commands)
        try:
            yield OpenRun(settings, state, directory, conductor, live, at_end)
        finally:
            server.close()


def choose_run_directory(out: Path | None, policy: str) -> Path:
    """Where a run directory shall be: `out`, or runs/<UTC time>-<policy> below the current one. Changes nothing."""
    label = re.sub(r"[^A-Za-z0-9.-]+", "-", policy)
    return (out or Path("runs") / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{label}").absolute()
