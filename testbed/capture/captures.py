"""The recordings of a run: where their files are, and what the run directory says of them."""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from testbed.capture.points import CapturePoint, choose_points
from testbed.capture.recorder.recording import Recorded, Recording, check_recorder
from testbed.errors import TestbedError
from testbed.links.interface import LinkError, RunningLinks
from testbed.run.rundir import RunDirectory, clock_offset

DIRECTORY = "pcap"
_COUNTERS = (
    *("frames_in", "frames_out", "dropped_queue", "dropped_loss", "dropped_other", "dropped_down"),
    *("duplicated", "corrupted", "reordered"),
)
_LOOK_S = 0.01
_QUIET_WAYS = 3  # longest ways through a link, one after the other
_AT_MOST_S = 2.0  # undilated


class Captures:
    """At most one recording goes on at a time. For any thread."""

    def __init__(
        self,
        points: Sequence[CapturePoint],
        pids: Mapping[str, int],
        links: RunningLinks,
        run_dir: RunDirectory,
        run_id: str,
        time_dilation: float,
    ) -> None:
        self._points = points
        self._pids = pids
        self._links = links
        self._run_dir = run_dir
        self._run_id = run_id
        self._time_dilation = time_dilation
        self._lock = threading.RLock()
        self._recording: Recording | None = None
        self._number = 0
        self.recorded: list[Recorded] = []

    def start(self, wanted: Sequence[str], snap_bytes: int) -> dict[str, Any]:
        """Begin to record what is named (see choose_points); returns what the answer to the user says.

        Raises TestbedError if something is recorded already or nothing has such a name, RunFailed if it cannot be done.
        """
        with self._lock:
            if self._recording is not None:
                raise TestbedError("a recording goes on already; end it with testbed capture stop")
            check_recorder()
            points = choose_points(self._points, wanted)
            directory = self._run_dir.path / DIRECTORY
            directory.mkdir(exist_ok=True)
            number = self._number + 1
            suffix = ".pcapng" if number == 1 else f".{number}.pcapng"
            files = {point.node: directory / f"{point.node}{suffix}" for point in points}
            offset_ns = clock_offset()["wall_minus_monotonic_ns"]
            comment = (
                f"testbed run={self._run_id} recording={number} wall_minus_monotonic_ns={offset_ns} "
                f"time_dilation={self._time_dilation:g}"
            )
            self._number = number
            self._recording = Recording(points, self._pids, files, snap_bytes, comment, self._run_id)
            about = {"recording": number, "points": [point.name for point in points], "capture_bytes": snap_bytes}
            self._run_dir.event("capture_started", **about, links=self._counters())
            return about

    def stop(self) -> dict[str, Any]:
        """End the recording at once. Raises TestbedError if there is none, or RunFailed."""
        with self._lock:
            if self._recording is None:
                raise TestbedError("nothing is being recorded; begin with testbed capture start")
            recording, self._recording = self._recording, None
            counters = self._counters()
            recorded = recording.stop()
            self.recorded.append(recorded)
            about = {
                "recording": self._number,
                "directory": str(self._run_dir.path / DIRECTORY),
                "files": [path.name for path in recorded.files],
                "frames": recorded.frames,
                "lost": recorded.lost,
            }
            points = {each.point.name: {"arrived": each.arrived, "lost": each.lost} for each in recorded.counts}
            self._run_dir.event("capture_stopped", **about, points=points, links=counters)
            self._run_dir.give_to_caller()
            return about

    def finish(self) -> list[str]:
        """End what is still being recorded, when all has arrived; returns warnings about recordings with gaps.

        Safe to call twice.
        """
        with self._lock:
            if self._recording is not None:
                with suppress(LinkError):  # what has failed carries nothing any more
                    self._wait_for_quiet()
                self.stop()
        return [
            f"recording {number} lacks {recorded.lost} of {recorded.frames + recorded.lost} frames: the machine or the "
            "disk was too slow; try a larger --time-dilation, fewer links or a smaller --capture-bytes"
            for number, recorded in enumerate(self.recorded, 1)
            if recorded.lost
        ]

    def _wait_for_quiet(self) -> None:
        """Wait until hosts and edges have been silent for longer than anything can be on its way.

        So the captures show that what did not come is lost. Edges go on telling hosts where their streams end.
        """
        directions = self._links.directions().values()
        longest_s = max(
            (
                (each.one_way_delay_ns + each.jitter_ns) / 1e9 + 8 * each.queue_bytes / each.rate_bps
                for each in directions
            ),
            default=0.0,
        )
        quiet_s = _QUIET_WAYS * longest_s
        access = {(point.node, point.peer.node) for point in self._points if point.kind == "access"}
        changed = time.monotonic()
        deadline = changed + quiet_s + _AT_MOST_S * self._time_dilation
        before = -1
        while (now := time.monotonic()) < deadline:
            counters = self._links.counters()
            sent = sum(counters[ends].frames_in for ends in access & counters.keys())
            if sent != before:
                before, changed = sent, now
            elif now - changed >= quiet_s:
                return
            time.sleep(_LOOK_S)

    def _counters(self) -> dict[str, dict[str, int]]:
        """What captures can be compared with: frames of each direction since the links were built."""
        try:
            counters = self._links.counters()
        except LinkError:
            return {}
        return {
            f"{source}>{target}": {name: getattr(direction, name) for name in _COUNTERS}
            for (source, target), direction in counters.items()
        }
