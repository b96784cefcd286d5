"""The captures to analyse: which files, where their frames were seen, and whether they are whole."""

import heapq
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.analyze.files import CaptureFile, Frames
from testbed.analyze.packets import IP_AT, Packets, find_packets
from testbed.errors import TestbedError

_CHUNKS_BYTES = 48 << 20  # of all files together
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Point:
    """One way through an interface: where packets are seen. `peer` is the other end of its link, node:interface."""

    number: int
    node: str
    interface: str
    link: str
    kind: str
    peer: str
    outbound: bool

    @property
    def name(self) -> str:
        return f"{self.node}:{self.interface}"

    @property
    def island(self) -> str:
        """The island of the node: nyc of nyc, nyc-e, nyc-lan and nyc-h1."""
        return re.sub(r"-(e|lan|h\d+)$", "", self.node)

    @property
    def is_host(self) -> bool:
        return re.search(r"-h\d+$", self.node) is not None

    @property
    def is_edge(self) -> bool:
        return self.node.endswith("-e")


@dataclass(frozen=True)
class Sightings:
    """Packets as they were seen, in columns."""

    point: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    packets: Packets


class Captures:
    """Several captures of one network. Raises TestbedError for files that are no captures."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.files = [CaptureFile(path) for path in paths]
        self._first: list[int] = []  # each file's first interface among all
        self._interfaces: list[int] = []  # how many each file has
        self.points: list[Point] = []
        starts, ends, losses = [], [], []
        for file in self.files:
            file.read_interfaces()
            file.read_ends()
            self._first.append(len(self.points) // 2)
            self._interfaces.append(len(file.interfaces))
            for interface in file.interfaces:
                if interface.link_type not in IP_AT:
                    raise TestbedError(f"{file.path}: link type {interface.link_type} is not supported; use Ethernet")
                about = _about(interface.comment)
                self._refuse_twice(about, file)
                for outbound in (False, True):
                    self.points.append(
                        Point(
                            len(self.points),
                            about.get("node", file.path.stem),
                            about.get("interface", interface.name or "?"),
                            about.get("link", ""),
                            about.get("kind", ""),
                            about.get("peer", ""),
                            outbound,
                        )
                    )
                starts.append(interface.start_ns)
                ends.append(interface.end_ns)
                losses.append(interface.lost)
        self.time_dilation = max(_time_dilation(file.comment) for file in self.files)
        known_starts = [start for start in starts if start is not None]
        known_ends = [end for end in ends if end is not None]
        self.start_ns = max(known_starts) if known_starts else None
        self.end_ns = min(known_ends) if known_ends else None
        self.lost_by_recorder = sum(loss for loss in losses if loss is not None)
        self.unended = sum(end is None for end in ends)
        ins = {point.name: point.number for point in self.points if not point.outbound}
        self.peers = {point.number: ins[point.peer] for point in self.points if point.outbound and point.peer in ins}
        """The inbound point at the other end of each outbound one, where both ends were captured."""
        self.merged = self.unreadable = self.frames = 0
        self.first_ns, self.last_ns = 1 << 62, 0

    def _refuse_twice(self, about: dict[str, str], file: CaptureFile) -> None:
        """Two recordings of one interface are of other times, or the same."""
        name = f"{about.get('node')}:{about.get('interface')}"
        if "node" in about and any(point.name == name for point in self.points):
            raise TestbedError(f"{file.path}: {name} is in another of these files too; analyse one recording at a time")

    @property
    def cut_files(self) -> list[Path]:
        """Files whose end is missing, as far as they have been read."""
        return [file.path for file in self.files if file.cut]

    def sightings(self) -> Iterator[tuple[int, Sightings, Sightings]]:
        """Everything in the captures, roughly in the order of time: files take turns by how far they have come.

        Yields how far all have come, our packets, and the other frames.
        """
        chunk_bytes = max(min(_CHUNK_BYTES, _CHUNKS_BYTES // max(len(self.files), 1)), 1 << 16)
        readers = [file.frames(chunk_bytes) for file in self.files]
        turns = [(0, number) for number in range(len(readers))]
        while turns:
            _, number = heapq.heappop(turns)
            frames = next(readers[number], None)
            if frames is None:
                continue
            heapq.heappush(turns, (int(frames.time_ns[-1]), number))
            yield turns[0][0], *self._sighted(number, frames)

    def _sighted(self, number: int, frames: Frames) -> tuple[Sightings, Sightings]:
        file = self.files[number]
        if len(file.interfaces) > self._interfaces[number]:
            raise TestbedError(f"{file.path}: several captures in one file; take them apart (for example with editcap)")
        link_type = np.array([each.link_type for each in file.interfaces])[frames.interface]
        point = 2 * (self._first[number] + frames.interface) + (frames.direction == 2)
        self.frames += len(point)
        inside = np.ones(len(point), bool)
        if self.start_ns is not None and self.end_ns is not None:
            # Before all interfaces were captured, and after the first was no more, links cannot be accounted for.
            inside = (frames.time_ns >= self.start_ns) & (frames.time_ns <= self.end_ns)
        found = find_packets(frames, link_type)
        self.merged += found.merged
        self.unreadable += found.unreadable
        self.first_ns = min(self.first_ns, int(frames.time_ns.min()))
        self.last_ns = max(self.last_ns, int(frames.time_ns.max()))

        def sighted(packets: Packets) -> Sightings:
            packets = packets if inside.all() else packets.only(inside[packets.frame])
            return Sightings(point[packets.frame], frames.time_ns[packets.frame], packets)

        return sighted(found.packets), sighted(found.others)


def _about(comment: str) -> dict[str, str]:
    """The words of a comment that are name=value."""
    return dict(word.split("=", 1) for word in comment.split(" ") if "=" in word)


def _time_dilation(comment: str) -> float:
    try:
        dilation = float(_about(comment).get("time_dilation", 1))
    except ValueError:
        return 1.0
    return dilation if math.isfinite(dilation) else 1.0


def find_captures(paths: Sequence[Path], recording: int | None = None) -> list[Path]:
    """The capture files of a run directory, or the files themselves. Raises TestbedError.

    A run may have several recordings: `recording` says which; None: there must be one only.
    """
    found: list[Path] = []
    of_runs = False
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        directory = path / "pcap" if (path / "pcap").is_dir() else path
        of_runs = True
        by_recording: dict[int, list[Path]] = {}
        for file in sorted(directory.glob("*.pcapng")):
            match = re.fullmatch(r".*\.(\d+)\.pcapng", file.name)
            by_recording.setdefault(int(match.group(1)) if match else 1, []).append(file)
        if not by_recording:
            raise TestbedError(f"{path}: no captures there; run with --capture")
        if recording is None and len(by_recording) > 1:
            raise TestbedError(f"{path}: recordings {', '.join(map(str, by_recording))}; choose with --recording N")
        if recording is not None and recording not in by_recording:
            raise TestbedError(f"--recording {recording}: {path} has {', '.join(map(str, by_recording))}")
        found += by_recording[recording or next(iter(by_recording))]
    if recording is not None and not of_runs:
        raise TestbedError(f"--recording {recording}: is for run directories, and not for files")
    return found
