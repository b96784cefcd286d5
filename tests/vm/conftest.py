"""One virtual machine for the whole ring, and the figures that it printed."""

import os
import time
from collections.abc import Callable, Iterator

import pytest

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
    """Keep a line for the end of the test run."""
    return request.config.stash.setdefault(_FIGURES, []).append


@pytest.fixture(scope="session")
def machine(note: Note) -> Iterator[Machine]:
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
