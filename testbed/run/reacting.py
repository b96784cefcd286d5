"""Reacts to links that fail beside the run's own loop: moving trees takes time, and the loop has rounds to run."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from testbed.live.links import Pair

Down = frozenset[Pair]


class Reactor:
    """Reacts to changes of the core links that are down, one after the other, from a thread of its own.

    `react` gets the links, and can ask whether there has been another change since.
    """

    def __init__(self, react: Callable[[Down, Callable[[], bool]], None]) -> None:
        self._react = react
        self._changes = 0
        self._thread = ThreadPoolExecutor(1, "reactor")
        self._lock = threading.Lock()
        self._reactions: list[Future[None]] = []

    def links_are_down(self, down: Down) -> None:
        """Note a change, from any thread; returns at once."""
        with self._lock:
            self._changes += 1
            number = self._changes
            self._reactions.append(self._thread.submit(self._react, down, lambda: self._changes > number))

    def check(self) -> None:
        """Raise what a reaction that is over has raised."""
        with self._lock:
            over = [each for each in self._reactions if each.done()]
            self._reactions = [each for each in self._reactions if each not in over]
        for each in over:
            each.result()

    def finish(self) -> None:
        """Wait for the reactions under way, and raise what they raise."""
        with self._lock:
            reactions, self._reactions = self._reactions, []
        for each in reactions:
            each.result()

    def close(self) -> None:
        """Start no further reaction, and wait for the one under way."""
        self._thread.shutdown(cancel_futures=True)
