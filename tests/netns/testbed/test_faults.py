"""What happens to a run when something else goes wrong: each fault has one outcome, and nothing is left behind."""

import csv
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from testbed.links.delayline.control import PROGRAM as DELAYLINE
from testbed.multicast.frr import missing_package
from tests.netns.testbed.background import WAIT_S, Running, processes_of, running
from tests.netns.testbed.command import command_line, leftovers

NEEDS_FRR = pytest.mark.skipif(missing_package() is not None, reason=str(missing_package()))
THREE = Path(__file__).with_name("three.json")
WALL_CLOCK = Path(__file__).with_name("wall_clock.c")
SMALL = ("--topology", str(THREE), "--payload-gb", "0.5", "--step-ms", "0", "--rounds", "1000")


def check_results_so_far(run_dir: Path, at_least: int) -> None:
    """Whatever was written is whole: events are lines of JSON, and each round's is in the table as well."""
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    rounds = [event["round"] for event in events if event["event"] == "round"]
    assert rounds == list(range(len(rounds)))
    assert len(rounds) >= at_least
    with (run_dir / "rounds.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    # A round is a line of the table first.
    assert [int(row["round"]) for row in rows][: len(rounds)] == rounds
    assert all(None not in row.values() for row in rows)


def check_stopped(run: Running, reason: str) -> None:
    """The run has ended with exit 1, in one line that gives the reason; so does its last event."""
    code, errors = run.end()
    assert code == 1, errors
    assert errors.count("\n") == 1
    assert reason in errors
    assert run.events("failed")[0]["reason"] in errors
    check_results_so_far(run.run_dir, at_least=2)


@pytest.mark.parametrize(
    ("process", "reason"),
    [
        ("agents.dataplane", "dataplane-a ended in the middle of the run (signal 9)"),
        ("agents.trainer", "trainer-a ended in the middle of the run (signal 9)"),
        ("testbed.run.nursery", "the nursery, which starts the run's processes, ended (signal 9)"),
        (str(DELAYLINE), "the links failed: the delayline program ended"),
    ],
)
def test_a_process_that_is_killed_stops_the_run(process: str, reason: str, tmp_path: Path) -> None:
    with running(tmp_path / "run", *SMALL, "--multicast", "direct", "--links", "delayline") as run:
        run.wait_for("round    2")
        os.kill(processes_of(run, process)[0], signal.SIGKILL)
        check_stopped(run, reason)


@NEEDS_FRR
@pytest.mark.parametrize("daemon", ["pimd", "zebra"])
def test_a_routing_daemon_that_is_killed_stops_the_run(daemon: str, tmp_path: Path) -> None:
    with running(tmp_path / "run", *SMALL, "--multicast", "pim") as run:
        run.wait_for("round    2")
        os.kill(processes_of(run, f"/usr/lib/frr/{daemon}")[0], signal.SIGKILL)
        check_stopped(run, "ended with signal 9")
        assert f"{daemon} of router" in run.events("failed")[0]["reason"]


def test_the_main_process_that_is_killed_leaves_its_results(tmp_path: Path) -> None:
    with running(tmp_path / "run", *SMALL, "--multicast", "direct") as run:
        run.wait_for("round    3")
        run_id = run.run_id
        run.process.kill()
        run.process.communicate(timeout=WAIT_S)
        check_results_so_far(tmp_path / "run", at_least=2)
        subprocess.run(command_line("clean"), check=True, timeout=WAIT_S, stdout=subprocess.DEVNULL)
    assert run_id not in leftovers()["marks"]


def test_a_host_that_stands_still_for_a_while_costs_one_round_at_most(tmp_path: Path) -> None:
    with running(tmp_path / "run", *SMALL[:-1], "12", "--multicast", "direct") as run:
        run.wait_for("round  2")
        host = processes_of(run, "agents.dataplane")[0]
        os.kill(host, signal.SIGSTOP)
        try:
            time.sleep(3)
        finally:
            os.kill(host, signal.SIGCONT)
        code, summary = run.finish()
    rounds = run.events("round")
    assert len(rounds) == 12
    hurt = [
        event["round"]
        for event in rounds
        if any(report["delivered"] < report["expected"] for report in event["done"].values())
    ]
    # None, if it stood still while nothing was under way: the others wait for it.
    assert len(hurt) <= 1
    assert code == len(hurt)
    assert all(event["exact"] for event in rounds)
    assert all(event["digests_equal"] for event in rounds if event["round"] not in hurt)
    assert (summary["contributions"]["lost"] > 0) == bool(hurt)
    # What was sent to it meanwhile lay at its socket.
    marked = {untrusted["round"]: "; ".join(untrusted["reasons"]) for untrusted in summary["untrusted_rounds"]}
    assert all("hosts took results in late" in marked.get(number, "") for number in hurt)


def test_a_full_disk_stops_the_run_and_leaves_what_was_written_whole(tmp_path: Path) -> None:
    before = leftovers()
    disk = tmp_path / "disk"
    disk.mkdir()
    # The disk is there for this one command; what the run leaves on it is copied off.
    script = (
        'mount -t tmpfs -o size=320k testbed "$0" || exit 99; "$@"; code=$?; cp -r "$0/run" "$0/../left"; exit $code'
    )
    ended = subprocess.run(
        [
            *("unshare", "--mount", "sh", "-c", script, str(disk)),
            *command_line("run", "--workload", "synthetic", *SMALL, "--multicast", "direct"),
            *("--out", str(disk / "run")),
        ],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.count("\n") == 1
    assert f"run directory {disk / 'run'}: No space left on device" in ended.stderr
    check_results_so_far(tmp_path / "left", at_least=2)
    assert not (tmp_path / "left" / "summary.json").exists()
    assert leftovers() == before


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_wall_clock_that_jumps_changes_nothing(tmp_path: Path) -> None:
    library = tmp_path / "wall_clock.so"
    compiler = ["gcc", "-std=c11", "-O2", "-Wall", "-Werror", "-fPIC", "-shared", "-o", str(library), str(WALL_CLOCK)]
    subprocess.run(compiler, check=True, timeout=60)
    jumps = tmp_path / "jumps"
    within = ("env", f"LD_PRELOAD={library}", f"WALL_CLOCK_JUMPS={jumps}")
    with running(tmp_path / "run", *SMALL[:-1], "10", within=within) as run:
        run.wait_for("ready:")
        jumps.touch()
        told = subprocess.run([*within, "date", "+%s"], capture_output=True, text=True, timeout=10, check=True)
        assert abs(int(told.stdout) - time.time()) > 80_000
        code, summary = run.finish()
    assert code == 0
    assert (summary["rounds"], summary["exact"], summary["contributions"]["lost"]) == (10, True, 0)
    times_ns = [event["monotonic_ns"] for event in run.events("round")]
    assert times_ns == sorted(times_ns)
    assert times_ns[-1] - times_ns[0] < WAIT_S * 1e9
