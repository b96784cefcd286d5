"""One virtual machine for the whole ring, and the figures that it printed."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
from _pytest.capture import CaptureManager

from tests.vm.image import Unavailable, cached_image
from tests.vm.machine import Machine

_FIGURES = pytest.StashKey[list[str]]()
Note = Callable[[str], None]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash.get(_FIGURES, []):
        terminalreporter.section("figures of the virtual machine (undilated)")
        for line in config.stash[_FIGURES]:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def note(request: pytest.FixtureRequest) -> Note:
    """Print a line at once, for a ring that is ended early, and again at the end of the test run."""
    figures = request.config.stash.setdefault(_FIGURES, [])
    capture: CaptureManager = request.config.pluginmanager.getplugin("capturemanager")
    began = time.monotonic()

    def print_and_keep(line: str) -> None:
        figures.append(line)
        with capture.global_and_fixture_disabled():
            print(f"\n{time.monotonic() - began:5.0f} s  {line}", end="", flush=True)

    return print_and_keep


@pytest.fixture(scope="session")
def ended_in_order() -> Iterator[None]:
    """A request to end is as Ctrl-C: pytest takes its fixtures down, and the machine with its files is one of them."""
    previous = signal.signal(signal.SIGTERM, _interrupt)
    yield
    signal.signal(signal.SIGTERM, previous)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


@pytest.fixture(scope="session")
def machine(note: Note, ended_in_order: None) -> Iterator[Machine]:
    began = time.monotonic()
    try:
        image = cached_image(note)
    except Unavailable as reason:
        # CI installs what it needs: there a missing virtual machine is a failure.
        if os.environ.get("TESTBED_REQUIRE_VM"):
            raise
        pytest.skip(str(reason))
    with Machine(image) as running:
        image_seconds = time.monotonic() - began - running.boot_seconds
        note(f"image ready in {image_seconds:.0f} s, booted in {running.boot_seconds:.0f} s")
        yield running
    note(f"the machine was needed for {time.monotonic() - began:.0f} s in all")
