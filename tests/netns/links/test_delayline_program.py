"""What is particular to the link kind delayline: its program, and the pattern of its losses."""

import os
import signal
import time
from pathlib import Path

import pytest
from conftest import Bench
from link_probes import direction, link, settled, until

from testbed.links.interface import LinkError

pytestmark = pytest.mark.parametrize("bench", ["delayline"], indirect=True)


def stopped(pid: int) -> bool:
    return all(
        Path(f"/proc/{pid}/task/{task}/stat").read_text(encoding="ascii").rsplit(") ", 1)[1][0] == "T"
        for task in os.listdir(f"/proc/{pid}/task")
    )


def test_a_program_that_was_killed_is_reported(bench: Bench) -> None:
    running = bench.build(link("a", "b", direction(1.0)))
    for pid in bench.processes():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(LinkError, match="ended"):
        running.counters()
    running.close()
    assert until(lambda: bench.node("a").interfaces() == set())


def test_a_machine_that_stalls_is_seen_in_the_counters(bench: Bench) -> None:
    """Frames that nobody read are counted as dropped by the machine, and those that were read late as late."""
    running = bench.build(link("a", "b", direction(1.0, queue_bytes=100_000)))
    a, b = bench.port("a", "b"), bench.port("b", "a")
    (pid,) = bench.processes()
    os.kill(pid, signal.SIGSTOP)
    assert until(lambda: stopped(pid))
    for number in range(3000):
        a.send(number)
    time.sleep(0.05)
    os.kill(pid, signal.SIGCONT)
    received = b.receive(0.5)
    counters = settled(running, ("a", "b"), 3000)
    assert counters.frames_in == 3000
    assert counters.frames_out == len(received)
    assert counters.dropped_other == 3000 - len(received) > 0
    assert counters.worst_lateness_ns >= 45_000_000
    assert counters.lateness.quantile_ns(0.5) >= 45_000_000


def mix(x: int) -> int:
    """The finaliser of splitmix64."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def test_the_frames_that_are_lost_are_those_of_the_formula(bench: Bench) -> None:
    """As docs/links.md gives it: anybody can tell from the seed which frames a direction loses."""
    running = bench.build(link("a", "b", direction(1.0, loss=0.3, seed=-12345, duplicate=0.1, jitter_ns=1000)))
    a, b = bench.port("a", "b"), bench.port("b", "a")
    for number in range(1000):
        a.send(number)
    received = {one.number for one in b.receive(0.3)}
    step = 0x9E3779B97F4A7C15
    start = mix((-12345 + step) % 2**64)
    lost = {n for n in range(1000) if mix((start + (n + 1) * step) % 2**64) >> 11 < 0.3 * 2**53}
    assert set(range(1000)) - received == lost
    assert settled(running, ("a", "b"), 1000).dropped_loss == len(lost)


def test_the_program_runs_with_priority_and_is_marked(bench: Bench) -> None:
    running = bench.build(link("a", "b", direction(1.0)))
    (pid,) = bench.processes()
    policies = [os.sched_getscheduler(int(task)) for task in os.listdir(f"/proc/{pid}/task")]
    assert sorted(policies) == [os.SCHED_OTHER, os.SCHED_FIFO, os.SCHED_FIFO] or running.warnings


def test_an_idle_program_sleeps(bench: Bench) -> None:
    bench.build(link("a", "b", direction(1.0)), link("b", "c", direction(0.0)))
    (pid,) = bench.processes()
    time.sleep(0.1)

    def switches() -> int:
        tasks = [Path(f"/proc/{pid}/task/{task}/status") for task in os.listdir(f"/proc/{pid}/task")]
        lines = [line for task in tasks for line in task.read_text(encoding="ascii").splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))

    before = switches()
    time.sleep(0.5)
    assert switches() - before <= 2
