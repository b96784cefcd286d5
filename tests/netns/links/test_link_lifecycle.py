"""Links come whole or not at all, and leave nothing behind however they end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Bench
from link_probes import direction, link, until

from testbed.links.awake import DEVICE
from testbed.links.interface import LinkError

ROOT = Path(__file__).parents[3]


def test_close_leaves_nothing_and_can_be_repeated(bench: Bench) -> None:
    here = set(os.listdir("/sys/class/net"))
    running = bench.build(link("a", "b", direction(1.0)), link("b", "c", direction(1.0)))
    assert bench.node("b").interfaces() == {"to-a", "to-c"}
    assert (len(bench.processes()) > 0) is bench.has_program
    running.close()
    assert all(node.interfaces() == set() for node in bench.nodes.values())
    assert bench.processes() == []
    running.close()
    assert set(os.listdir("/sys/class/net")) == here
    with pytest.raises(LinkError, match="closed"):
        running.counters()


def test_idle_processors_stay_ready_while_links_run(bench: Bench) -> None:
    if not DEVICE.exists():
        pytest.skip(f"this kernel has no {DEVICE}: idle processors are not managed")

    def allowed_us() -> int:
        return int.from_bytes(DEVICE.read_bytes(), sys.byteorder, signed=True)

    before_us = allowed_us()
    running = bench.build(link("a", "b", direction(1.0)))
    assert allowed_us() == 0
    running.close()
    assert allowed_us() == before_us
    bench.node("b").run("ip", "link", "add", "to-a", "type", "veth", "peer", "name", "other")
    with pytest.raises(LinkError, match="File exists"):
        bench.build(link("a", "b", direction(1.0)))
    assert allowed_us() == before_us


def test_interfaces_never_appear_where_the_caller_lives(bench: Bench) -> None:
    with subprocess.Popen(["ip", "monitor", "link"], stdout=subprocess.PIPE, text=True) as monitor:
        time.sleep(0.3)
        bench.build(link("a", "b", direction(1.0))).close()
        monitor.terminate()
        seen = monitor.communicate()[0]
    assert "to-a" not in seen
    assert "to-b" not in seen


def test_a_name_that_is_taken_is_named_and_nothing_is_left(bench: Bench) -> None:
    bench.node("b").run("ip", "link", "add", "to-a", "type", "veth", "peer", "name", "other")
    with pytest.raises(LinkError, match=r"to-a.*File exists"):
        bench.build(link("c", "d", direction(1.0)), link("a", "b", direction(1.0)))
    assert bench.node("a").interfaces() == bench.node("c").interfaces() == set()
    assert bench.node("b").interfaces() == {"to-a", "other"}
    assert bench.processes() == []


def test_what_is_refused_is_not_built(bench: Bench) -> None:
    impossible = link("a", "b", direction(1.0, rate_mbps=1e9))
    assert bench.kind.refusal([impossible]) is not None
    with pytest.raises(LinkError, match="link a-b"):
        bench.build(impossible)
    assert bench.node("a").interfaces() == set()
    assert bench.processes() == []


def test_two_runs_at_once_do_not_meet(bench: Bench) -> None:
    first = bench.build(link("a", "b", direction(1.0)))
    second = bench.build(link("a", "c", direction(1.0)))
    first.close()
    assert bench.node("a").interfaces() == {"to-c"}
    bench.port("a", "c").send(1)
    assert len(bench.port("c", "a").receive(0.1)) == 0  # opened after the frame was sent
    receiver = bench.port("c", "a")
    bench.port("a", "c").send(2)
    assert [one.number for one in receiver.receive(0.3)] == [2]
    second.close()


@pytest.mark.parametrize("child_of_its_own", [False, True])
def test_links_end_when_their_owner_is_killed(bench: Bench, child_of_its_own: bool) -> None:
    """Also when a process that the owner has forked lives on, with copies of all its file descriptors."""
    a, b = bench.node("a"), bench.node("b")
    script = f"""
import os, sys, time
from conftest import KINDS
from link_probes import direction, link
running = KINDS[{bench.kind.name!r}]().build(
    [link("a", "b", direction(1.0))], {{"a": {a.pid}, "b": {b.pid}}}, {bench.run_id!r})
child = os.fork() if {child_of_its_own} else 0
if child:
    print(child, flush=True)
elif not {child_of_its_own}:
    print("none", flush=True)
time.sleep(30)
"""
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    owner = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert owner.stdout is not None
    child = owner.stdout.readline().strip()
    try:
        assert a.interfaces() == {"to-b"}
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert until(lambda: a.interfaces() == b.interfaces() == set())
        assert until(lambda: bench.processes() == [])
    finally:
        owner.kill()
        owner.stdout.close()
        if child_of_its_own:
            os.kill(int(child), signal.SIGKILL)
