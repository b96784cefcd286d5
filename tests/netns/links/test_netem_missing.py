"""Where the kernel has no netem: one line with the way out, before anything is built; `auto` goes on without."""

import os
import time

import pytest

from testbed.errors import TestbedError
from testbed.links.kinds import choose_link_kind
from testbed.links.netem import Netem
from tests.netns.testbed.command import call_testbed


@pytest.fixture
def refusal() -> str:
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    refusal = Netem().refusal([])
    if refusal is None:
        pytest.skip("this kernel has netem")
    return refusal


def interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def test_the_refusal_names_what_is_missing_and_the_way_out(refusal: str) -> None:
    assert refusal.startswith("this kernel lacks sch_netem")
    assert "--links delayline" in refusal
    assert "\n" not in refusal


def test_asking_changes_nothing(refusal: str) -> None:
    before, threads = interfaces(), len(os.listdir("/proc/self/task"))
    assert Netem().refusal([]) == refusal
    assert interfaces() == before
    # A thread that has been joined may still be seen for a moment.
    deadline = time.monotonic() + 5
    while len(os.listdir("/proc/self/task")) > threads:
        assert time.monotonic() < deadline


def test_auto_takes_the_next_kind(refusal: str) -> None:
    assert choose_link_kind("auto", []).name == "delayline"
    with pytest.raises(TestbedError, match="link kind netem: this kernel lacks"):
        choose_link_kind("netem", [])


def test_a_run_that_insists_ends_with_2_and_leaves_nothing(refusal: str) -> None:
    before = interfaces()
    done = call_testbed("run", "--links", "netem", "--workload", "synthetic", "--rounds", "1")
    assert done.code == 2
    assert refusal in done.errors
    assert len(done.errors.strip().splitlines()) == 1
    assert interfaces() == before
