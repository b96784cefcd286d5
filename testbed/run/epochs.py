"""The epochs of a run: bringing one into operation, and going from one to the next without losing a packet.

Make before break: a new epoch has groups of its own (and source addresses, where its ways back differ), which are
installed, joined, compared with the plan and probed while the epoch before carries traffic. Rounds change over at a
boundary, and only then the old groups are left. The trees of an epoch are never changed, unless a link of theirs fails.
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
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


class NetworkChanged(Exception):
    """A link failed while an epoch was brought into operation: it was planned for a network that is no more."""


@dataclass(frozen=True)
class Readiness:
    """How an epoch became ready: wall-clock ms of each step, in order, and the proven paths."""

    steps_ms: Mapping[str, float]
    paths: list[ProbedPath]


MakeEpoch = Callable[[int, Plan, Topology, list[Tree], set[str]], Epoch]
"""An epoch from its number, its plan and the network that it is for, the trees that are live beside it, and all groups
that the run has used.

Raises TestbedError if the run cannot carry it."""


class Epochs:
    """Which epoch is in force, and which is to come.

    The run's loop switches, between rounds; one other thread introduces; `move` may be called from any.
    """

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
        self._prepared: Epoch | None = None
        self._just_left: list[Tree] = []
        self._moves = 0
        # Edges keep what has arrived by probe number, so no two attempts may share one.
        self._probes = itertools.count()
        self._used_groups = {tree.group for tree in start_up.epoch.distinct_trees()}
        self.introductions = 0
        self.first_round = 0
        self.current = start_up.epoch
        self.all = {self.current.number: self.current}

    def begin(self) -> None:
        """Bring the first epoch into operation. Raises RunFailed or MulticastError."""
        self._introduce(self.current)

    def phase_of(self, round_number: int) -> int:
        """The place of a round in the current epoch's schedule, which begins with the epoch."""
        return self.current.phase_of(round_number - self.first_round)

    def introduce(self, plan: Plan, left: Topology) -> Epoch:
        """Make an epoch ready beside the current one, whose rounds go on; `switch` then brings it into force.

        Its `plan` is for the network that is `left`. Raises TestbedError, RunFailed or MulticastError if it cannot be,
        and NetworkChanged if a link failed meanwhile; nothing is left of it then.
        """
        live = [live for live, _ in self.live_and_planned()] + self._just_left
        # One that was given up is not counted: processes keep the epoch before the newest, which carries traffic.
        epoch = self._make(self.current.number + 1, plan, left, live, self._used_groups)
        self._used_groups |= {tree.group for tree in epoch.distinct_trees()}
        with self._lock:
            self._prepared = epoch
            self.all[epoch.number] = epoch
            moves_before = self._moves
        try:
            self._introduce(epoch)
        except BaseException as error:
            with self._lock:
                moved = self._moves != moves_before
                given_up, self._prepared = self._prepared, None
            with suppress(RunFailed, MulticastError):  # the first error is what matters
                self._leave(given_up)
            if moved and isinstance(error, RunFailed | MulticastError):
                raise NetworkChanged from error
            raise
        return epoch

    def switch(self, next_round: int) -> Epoch:
        """Between two rounds: from `next_round` on the epoch that is ready is in force, and the old is left.

        Returns it. Raises RunFailed or MulticastError.
        """
        with self._lock:
            assert self._prepared is not None
            old, self.current, self._prepared = self.current, self._prepared, None
            self.first_round = next_round
        self._before_removal(old.distinct_trees())
        self._leave(old)
        return self.current

    def _leave(self, old: Epoch) -> None:
        """Leave an epoch's groups and have the routers forget its trees. Raises RunFailed or MulticastError."""
        timeout_s = ANSWER_TIMEOUT_S * self._start_up.settings.scale.time_dilation
        self._fleet.ask({edge: {"epoch": old.number} for edge in self._fleet.of("edge")}, "leave", "left", timeout_s)
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

        self.introductions += 1
        moves_before = self._moves
        trees = epoch.distinct_trees()
        self._start_up.network.add_host_addresses(tree.address for tree in trees)
        self._plane.install(trees)
        note("routes and entries")
        announce_epoch(self._fleet, self._start_up, epoch)
        note("joins")
        self._plane.confirm(trees, CONFIRM_TIMEOUT_S * scale.time_dilation)
        note("trees as planned")
        # Links that fail meanwhile make this epoch one that is not waited for.
        paths = probe_trees(
            self._fleet, epoch, self._in_force(), scale, self._probes, lambda: self._moves != moves_before
        )
        if not paths:
            raise RunFailed("no island sends anything in this schedule")
        note("probes")
        self._on_ready(epoch, Readiness(steps_ms, paths))


def _with_moved(epoch: Epoch, moves: Mapping[Tree, Tree]) -> Epoch:
    return replace(epoch, trees={key: moves.get(tree, tree) for key, tree in epoch.trees.items()})
