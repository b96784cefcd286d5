"""The epochs of a run: bringing one into operation, and going from one to the next without losing a packet.

Make before break: a new epoch has groups of its own (and source addresses, where its ways back differ), which are
installed, joined, compared with the plan and probed while the epoch before carries traffic. Rounds change over at a
boundary, and only then the old groups are left. The trees of an epoch are never changed, unless a link of theirs fails.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from scheduler.plan import Plan
from scheduler.topology import Topology
from testbed.errors import RunFailed
from testbed.multicast.groups import Tree
from testbed.multicast.interface import MulticastError, RunningPlane
from testbed.run.probing import ProbedPath, probe_trees
from testbed.run.processes import ANSWER_TIMEOUT_S, Fleet
from testbed.run.program import Epoch
from testbed.run.startup import StartUp, announce_epoch

CONFIRM_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Readiness:
    """How an epoch became ready: wall-clock ms of each step, in order, and the proven paths."""

    steps_ms: Mapping[str, float]
    paths: list[ProbedPath]


MakeEpoch = Callable[[int, Plan, list[Tree], set[str]], Epoch]
"""An epoch from its number, its plan, the trees that are live beside it, and all groups that the run has used."""


class Epochs:
    """Which epoch is in force, and which are to come. `schedule` and `move` may be called from any thread."""

    def __init__(
        self,
        fleet: Fleet,
        start_up: StartUp,
        plane: RunningPlane,
        make: MakeEpoch,
        on_ready: Callable[[Epoch, Readiness], None],
        before_removal: Callable[[list[Tree]], None],
        in_force: Callable[[], Topology],
    ) -> None:
        """`in_force` gives the topology with the delays that its links have now: probes must find them."""
        self._fleet = fleet
        self._start_up = start_up
        self._plane = plane
        self._make = make
        self._on_ready = on_ready
        self._before_removal = before_removal
        self._in_force = in_force
        self._lock = threading.Lock()
        self._scheduled: dict[int, Plan] = {}
        self._prepared: Epoch | None = None
        self._first_round = 0
        self._just_left: list[Tree] = []
        self._moves = 0
        self._used_groups = {tree.group for tree in start_up.epoch.distinct_trees()}
        self.current = start_up.epoch
        self.all = {self.current.number: self.current}

    def begin(self) -> None:
        """Bring the first epoch into operation. Raises RunFailed or MulticastError."""
        self._introduce(self.current)

    def schedule(self, plans: Mapping[int, Plan]) -> None:
        """Go over to these plans at these rounds, and to no others.

        The last of those whose rounds have come follows as soon as it is ready: at the end of this round or the next.
        """
        with self._lock:
            self._scheduled = dict(plans)

    def phase_of(self, round_number: int) -> int:
        """The place of a round in the current epoch's schedule, which begins with the epoch."""
        return self.current.phase_of(round_number - self._first_round)

    def prepare(self, round_number: int) -> None:
        """While this round is under way, make ready what shall follow it. Raises RunFailed or MulticastError."""
        with self._lock:
            due = sorted(first for first in self._scheduled if first <= round_number + 1)
            plans = [self._scheduled.pop(first) for first in due]
        if not plans:
            return
        live = [live for live, _ in self.live_and_planned()] + self._just_left
        # One that was given up is not counted: processes keep the epoch before the newest, which carries traffic.
        epoch = self._make(self.current.number + 1, plans[-1], live, self._used_groups)
        self._used_groups |= {tree.group for tree in epoch.distinct_trees()}
        with self._lock:
            self._prepared = epoch
            self.all[epoch.number] = epoch
        moves_before = self._moves
        try:
            self._introduce(epoch)
        except (RunFailed, MulticastError):
            if self._moves == moves_before:
                raise
            # A link failed meanwhile, and the epoch was planned for a network that is no more.
            self._prepared = None
            self._leave(epoch)

    def switch(self, next_round: int) -> None:
        """Between two rounds: from `next_round` on the epoch that was prepared is in force, and the old is left."""
        if self._prepared is None:
            return
        with self._lock:
            old, self.current, self._prepared = self.current, self._prepared, None
            self._first_round = next_round
        self._before_removal(old.distinct_trees())
        self._leave(old)

    def _leave(self, old: Epoch) -> None:
        """Leave an epoch's groups and have the routers forget its trees. Raises RunFailed or MulticastError."""
        edges = self._fleet.of("edge")
        self._fleet.send(edges, "leave", epoch=old.number)
        self._fleet.gather(edges, "left", ANSWER_TIMEOUT_S * self._start_up.settings.scale.time_dilation)
        self._plane.remove(old.distinct_trees())
        # Routers may still be busy forgetting these.
        self._just_left = old.distinct_trees()

    def live_and_planned(self) -> list[tuple[Tree, Tree]]:
        """The trees that are installed, or about to be: as they are, and as they were planned."""
        with self._lock:
            epochs = [epoch for epoch in (self.current, self._prepared) if epoch is not None]
        return [
            pair
            for epoch in epochs
            for pair in zip(epoch.distinct_trees(), self.all[epoch.number].distinct_trees(), strict=True)
        ]

    def move(self, moves: Mapping[Tree, Tree]) -> None:
        """Carry live trees over other links. Raises MulticastError."""
        # Before it is done: an epoch that is being made ready may fail for it meanwhile.
        self._moves += 1
        self._plane.move(moves)
        with self._lock:
            self.current = _with_moved(self.current, moves)
            if self._prepared is not None:
                self._prepared = _with_moved(self._prepared, moves)

    def _introduce(self, epoch: Epoch) -> None:
        scale = self._start_up.settings.scale
        steps_ms: dict[str, float] = {}
        clock = time.monotonic()

        def note(step: str) -> None:
            nonlocal clock
            now = time.monotonic()
            steps_ms[step] = (now - clock) * 1e3
            clock = now

        trees = epoch.distinct_trees()
        self._start_up.network.add_host_addresses(tree.address for tree in trees)
        self._plane.install(trees)
        note("routes and entries")
        announce_epoch(self._fleet, self._start_up, epoch)
        note("joins")
        self._plane.confirm(trees, CONFIRM_TIMEOUT_S * scale.time_dilation)
        note("trees as planned")
        paths = probe_trees(self._fleet, epoch, self._in_force(), scale)
        if not paths:
            raise RunFailed("no island sends anything in this schedule")
        note("probes")
        self._on_ready(epoch, Readiness(steps_ms, paths))


def _with_moved(epoch: Epoch, moves: Mapping[Tree, Tree]) -> Epoch:
    return replace(epoch, trees={key: moves.get(tree, tree) for key, tree in epoch.trees.items()})
