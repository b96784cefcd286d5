"""Forked processes are as if each had been started by a command, and none outlives the run, its nursery or its end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.pinned import ENVIRONMENT
from testbed.errors import RunFailed
from testbed.run.nursery import Nursery
from testbed.run.processes import RUN_ID_VARIABLE, Fleet, Process

WAIT_S = 20
# A role that says what it is, and then does as it is told.
_ROLE = """
import gc, json, os, random, resource, signal, sys, threading, time
from pathlib import Path
from aggregator.wire.control import process_main

def facts():
    import numpy
    own = Path("/proc/self")
    return {
        "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "argv": sys.argv,
        "cmdline": own.joinpath("cmdline").read_bytes().rstrip(b"\\0").decode().split("\\0"),
        "comm": own.joinpath("comm").read_text().strip(),
        "environment": own.joinpath("environ").read_bytes().decode().split("\\0"),
        "variables": dict(os.environ),
        "descriptors": sorted(int(one.name) for one in own.joinpath("fd").iterdir() if one.exists()),
        "inputs": os.readlink("/proc/self/fd/0"),
        "policy": os.sched_getscheduler(0), "threads": len(os.listdir("/proc/self/task")), "collects": gc.isenabled(),
        "drawn": [random.random(), numpy.random.random()],
        "hash": hash("testbed"), "namespace": os.readlink("/proc/self/ns/net"),
    }

def serve(channel):
    while (message := channel.receive()) and message["type"] != "stop":
        match message["type"]:
            case "facts":
                channel.send("facts", **facts())
            case "print":
                print(message["text"])
                print(message["text"], file=sys.stderr)
            case "exit":
                sys.exit(message["status"])
            case "deaf":
                time.sleep(100)

def main():
    return process_main("role", "A role of a test.", serve)
"""


@pytest.fixture
def nursery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "some_role.py").write_text(_ROLE, encoding="utf-8")
    (modules / "broken_role.py").write_text("raise RuntimeError('no role at all')", encoding="utf-8")
    here = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{modules}:{here}" if here else str(modules))
    made = Nursery("test-run", tmp_path, ["some_role", "numpy.random"])
    yield made
    made.close()


def spawn(nursery: Nursery, island: str = "nyc", host: int = 1, role: str = "dataplane") -> Process:
    return nursery.spawn(role, "some_role", island, None, host)


def facts(process: Process) -> dict[str, Any]:
    process.channel.send("facts")
    answer = process.channel.receive()
    assert answer is not None
    return answer


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def test_a_child_is_as_if_a_command_had_started_it(nursery: Nursery) -> None:
    first, second = spawn(nursery, "nyc"), spawn(nursery, "lon", host=2)
    one, other = facts(first), facts(second)
    assert (one["pid"], one["session"]) == (first.child.pid, first.child.pid)
    assert one["parent"] == other["parent"] != os.getpid()
    *command, flag, control_fd = one["cmdline"]
    assert command == [sys.executable, "-P", "-m", "some_role"]
    assert flag == "--control-fd"
    assert one["argv"][1:] == [flag, control_fd]
    assert (one["comm"], other["comm"]) == ("dataplane-nyc", "dataplane-lon-h")  # a name is cut after 15 bytes
    # Nothing of its siblings, or of the nursery.
    assert one["descriptors"] == [0, 1, 2, int(control_fd)]
    assert other["descriptors"] == [0, 1, 2, int(other["argv"][-1])]
    assert one["inputs"] == "/dev/null"
    assert f"{RUN_ID_VARIABLE}=test-run" in one["environment"]
    assert one["variables"].items() >= {**ENVIRONMENT, "PYTHONHASHSEED": "0", RUN_ID_VARIABLE: "test-run"}.items()
    assert (one["threads"], one["collects"], one["policy"]) == (1, True, os.SCHED_OTHER)
    assert one["namespace"] == os.readlink("/proc/self/ns/net")
    # Hashes are fixed; what nobody has seeded is not the same twice.
    assert one["hash"] == other["hash"]
    assert all(mine != its for mine, its in zip(one["drawn"], other["drawn"], strict=True))


def test_hashes_are_those_of_any_pinned_process(nursery: Nursery) -> None:
    script = "print(hash('testbed'))"
    said = subprocess.check_output([sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": "0"})
    assert facts(spawn(nursery))["hash"] == int(said)


def test_each_child_has_its_own_log(nursery: Nursery, tmp_path: Path) -> None:
    for island in ("nyc", "lon"):
        process = spawn(nursery, island)
        process.channel.send("print", text=f"this is {island}")
        process.channel.send("stop")
        assert process.child.wait(WAIT_S) == 0
    for island in ("nyc", "lon"):
        log = (tmp_path / f"dataplane-{island}.log").read_text(encoding="utf-8")
        assert log == f"this is {island}\n" * 2
    assert (tmp_path / "nursery.log").read_text(encoding="utf-8") == ""


def test_exit_statuses_and_signals_are_told(nursery: Nursery) -> None:
    leaving, killed, stuck = spawn(nursery), spawn(nursery), spawn(nursery)
    os.kill(killed.child.pid, signal.SIGKILL)
    stuck.channel.send("deaf")
    with pytest.raises(subprocess.TimeoutExpired):
        stuck.child.wait(0.05)
    stuck.child.kill()
    leaving.channel.send("exit", status=7)
    assert leaving.child.wait(WAIT_S) == 7
    assert killed.child.wait(WAIT_S) == stuck.child.wait(WAIT_S) == -signal.SIGKILL
    assert stuck.child.wait(0) == -signal.SIGKILL
    stuck.child.kill()  # that it has ended already is no error


def test_a_module_that_cannot_be_loaded_is_in_the_log_of_the_process(nursery: Nursery, tmp_path: Path) -> None:
    broken = nursery.spawn("trainer", "broken_role", "nyc", None)
    assert broken.child.wait(WAIT_S) == 1
    assert broken.channel.receive() is None
    assert "no role at all" in (tmp_path / "trainer-nyc.log").read_text(encoding="utf-8")
    assert facts(spawn(nursery))["pid"] > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to take a real-time priority")
def test_an_edge_is_urgent_from_the_start(nursery: Nursery) -> None:
    assert facts(spawn(nursery, role="edge"))["policy"] == os.SCHED_FIFO


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a network namespace")
def test_a_child_lives_in_the_namespace_of_its_node(nursery: Nursery) -> None:
    node = subprocess.Popen(["unshare", "--net", "sleep", "100"])
    try:
        namespace = Path(f"/proc/{node.pid}/ns/net")
        until(lambda: namespace.readlink() != Path("/proc/self/ns/net").readlink())
        process = nursery.spawn("dataplane", "some_role", "nyc", node.pid)
        assert facts(process)["namespace"] == str(namespace.readlink())
        assert facts(spawn(nursery))["namespace"] == os.readlink("/proc/self/ns/net")
    finally:
        node.kill()
        node.wait()


def test_a_node_that_is_gone_is_said(nursery: Nursery) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(RunFailed, match=r"dataplane-nyc cannot be started: .*No such file"):
        nursery.spawn("dataplane", "some_role", "nyc", gone.pid)
    assert facts(spawn(nursery))["pid"] > 0


def test_children_end_with_a_nursery_that_is_killed(nursery: Nursery, tmp_path: Path) -> None:
    process = spawn(nursery)
    process.channel.send("deaf")
    fleet = Fleet(tmp_path)
    fleet.add(process, start_again=lambda: spawn(nursery))
    os.kill(parent_of(process.child.pid), signal.SIGKILL)
    with pytest.raises(RunFailed, match=r"the nursery, .* ended \(signal 9\); see .*"):
        fleet.gather([process], "facts", WAIT_S)
    until(lambda: not alive(process.child.pid))
    with pytest.raises(RunFailed, match=r"ended \(signal 9\)"):
        spawn(nursery)
    fleet.stop()


def test_children_end_with_a_nursery_that_is_closed(nursery: Nursery) -> None:
    process = spawn(nursery)
    process.channel.send("deaf")
    nursery.close()
    until(lambda: not alive(process.child.pid))
    nursery.close()


def test_a_fleet_stops_children_that_do_not_listen(nursery: Nursery, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    processes = [spawn(nursery, island) for island in ("nyc", "lon")]
    for process in processes:
        fleet.add(process)
    processes[0].channel.send("deaf")
    fleet.stop()
    assert [process.child.wait(0) for process in processes] == [-signal.SIGKILL, 0]


def test_all_end_with_the_run(tmp_path: Path) -> None:
    script = f"""
import json, time
from pathlib import Path
from testbed.run.nursery import Nursery
nursery = Nursery("test-run", Path({str(tmp_path)!r}), [])
child = nursery.spawn("trainer", "agents.trainer", "nyc", None)
print(json.dumps([child.child.pid, nursery._popen.pid]), flush=True)
time.sleep(100)
"""
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert run.stdout is not None
        pids = json.loads(run.stdout.readline())
        assert all(alive(pid) for pid in pids)
    finally:
        run.kill()
        run.communicate()
    until(lambda: not any(alive(pid) for pid in pids))


def parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return int(stat.rpartition(")")[2].split()[1])
