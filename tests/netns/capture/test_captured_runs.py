"""Captures of whole runs: every packet is accounted for, exactly as links and agents have counted."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from testbed.analyze.analysis import analyse
from testbed.analyze.captures import Captures, find_captures
from testbed.analyze.results import Analysis
from tests.netns.capture.agreement import disagreements_with_agents, disagreements_with_links
from tests.netns.testbed.command import call_testbed, command_line, leftovers, run_json

WAIT_S = 60.0
USER, GROUP = 12345, 23456
ROUNDS = 6
TOPOLOGY = {
    "directed": False,
    "nodes": [{"id": name} for name in ("ams", "bru", "cph")],
    "edges": [
        {"source": "ams", "target": "bru", "one_way_delay_ms": 5, "rate_gbps": 100},
        {"source": "bru", "target": "cph", "one_way_delay_ms": 8, "rate_gbps": 100},
        {"source": "ams", "target": "cph", "one_way_delay_ms": 40, "rate_gbps": 100},
    ],
}
OPTIONS = ("--workload", "synthetic", "--payload-gb", "0.3", "--multicast", "direct")


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("topology") / "three.json"
    path.write_text(json.dumps(TOPOLOGY), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def lossy(topology: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run with losses on core and access links, captured everywhere, by a user who called sudo."""
    before = leftovers()
    run_dir = tmp_path_factory.mktemp("lossy") / "run"
    loss = ("--loss", "ams-bru=4%", "--loss", "bru>cph=2%", "--loss", "access=2%")
    caller = {"SUDO_UID": str(USER), "SUDO_GID": str(GROUP)}
    os.environ.update(caller)
    try:
        finished = run_json(
            run_dir, "--topology", str(topology), *OPTIONS, "--rounds", str(ROUNDS), *loss, "--capture", "all"
        )
    finally:
        for name in caller:
            del os.environ[name]
    assert (finished.code, bool(finished.output)) == (1, True), finished.errors  # something was lost
    assert leftovers() == before
    return run_dir, finished.document


@pytest.fixture(scope="module")
def analysis(lossy: tuple[Path, dict[str, Any]]) -> Analysis:
    return analyse(Captures(find_captures([lossy[0]])))


def test_files_are_the_callers(lossy: tuple[Path, dict[str, Any]]) -> None:
    files = sorted((lossy[0] / "pcap").iterdir())
    nodes = [name for island in ("ams", "bru", "cph") for name in (island, f"{island}-e", f"{island}-h1")]
    assert [path.name for path in files] == sorted(f"{node}.pcapng" for node in nodes)
    assert {(path.stat().st_uid, path.stat().st_gid) for path in files} == {(USER, GROUP)}
    manifest = json.loads((lossy[0] / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["clock"]["wall_minus_monotonic_ns"] > 0


def test_every_packet_is_accounted_for(analysis: Analysis) -> None:
    assert analysis.complete, analysis.warnings
    assert analysis.unexplained == 0
    assert analysis.partial_rounds == []
    assert len(analysis.streams) == 6


def test_hops_agree_with_the_links_own_counters(lossy: tuple[Path, dict[str, Any]], analysis: Analysis) -> None:
    assert disagreements_with_links(lossy[0], analysis) == {}
    assert sum(hop.lost for hop in analysis.hops) > 10


def test_every_lost_packet_has_its_link(analysis: Analysis) -> None:
    assert len(analysis.lost) == sum(hop.lost for hop in analysis.hops)
    assert {"ams>bru", "bru>ams", "bru>cph"} <= {packet.place for packet in analysis.lost}


def test_streams_agree_with_the_agents_own_counters(lossy: tuple[Path, dict[str, Any]], analysis: Analysis) -> None:
    assert disagreements_with_agents(lossy[0], analysis) == {}
    contributions = lossy[1]["contributions"]
    assert sum(stream.sent for stream in analysis.streams) == contributions["sent"]
    assert sum(stream.unrepaired or 0 for stream in analysis.streams) == contributions["lost"] > 0


def test_the_command_says_the_same(lossy: tuple[Path, dict[str, Any]], analysis: Analysis) -> None:
    done = call_testbed("analyze", "--json", str(lossy[0]))
    assert done.code == 0, done.errors
    assert done.document["unexplained"] == 0
    assert done.document["lost_frames"] == len(analysis.lost)


def test_a_running_experiment_is_recorded_from_one_moment_to_another(
    topology: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("live")
    options = ("--topology", str(topology), *OPTIONS, "--rounds", "100000", "--loss", "ams-bru=4%")
    with subprocess.Popen(
        command_line("run", *options, "--out", str(directory / "run")), stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        try:
            while not run.stdout.readline().startswith("round"):
                assert run.poll() is None
            which = ("--run", _run_id(directory / "run"))
            nothing = call_testbed("capture", "stop", *which)
            assert (nothing.code, "nothing is being recorded" in nothing.errors) == (2, True)
            wrong = call_testbed("capture", "start", "ams:nothing", *which)
            assert (wrong.code, "ams has ams-bru" in wrong.errors) == (2, True)
            started = call_testbed("capture", "start", "all", "--json", *which)
            assert started.code == 0, started.errors
            again = call_testbed("capture", "start", "core", *which)
            assert (again.code, "goes on already" in again.errors) == (2, True)
            deadline = time.monotonic() + WAIT_S
            for _ in range(4):  # these rounds are being recorded; nobody must be kept waiting by a full pipe
                assert run.stdout.readline()
                assert time.monotonic() < deadline
            stopped = call_testbed("capture", "stop", "--json", *which)
            assert stopped.code == 0, stopped.errors
            assert stopped.document["lost"] == 0
        finally:
            run.send_signal(signal.SIGINT)
            run.stdout.read()
            run.wait(WAIT_S)
    analysis = analyse(Captures(find_captures([directory / "run"])))
    assert analysis.complete, analysis.warnings
    assert analysis.unexplained == 0
    assert analysis.streams
    assert 1 <= len(analysis.partial_rounds) <= 4
    assert any(hop.lost for hop in analysis.hops)


def _run_id(run_dir: Path) -> str:
    run_id: str = json.loads((run_dir / "manifest.json").read_text(encoding="utf-8"))["run_id"]
    return run_id


def test_names_of_nothing_are_refused_before_anything_is_built(topology: Path, tmp_path: Path) -> None:
    refused = call_testbed(
        "run", "--topology", str(topology), "--out", str(tmp_path / "run"), "--capture", "core", "ams:cph-h1"
    )
    assert refused.code == 2
    assert "--capture ams:cph-h1" in refused.errors
    assert not (tmp_path / "run").exists()
