"""Captures of runs with repair, on links that do everything to frames: they say exactly what others have counted."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from testbed.analyze.analysis import analyse
from testbed.analyze.captures import Captures, find_captures
from testbed.analyze.results import Analysis
from testbed.run.settings import REFERENCE_PAYLOAD_GB
from tests.netns.capture.agreement import disagreements_with_agents, disagreements_with_links
from tests.netns.testbed.background import kill_when_reached, processes_of, running
from tests.netns.testbed.command import TIMEOUT_S, run_json

CHUNKS = 30
PAIRS = 6
TOPOLOGY = {
    "directed": False,
    "nodes": [{"id": name} for name in "abc"],
    "edges": [
        {"source": "a", "target": "b", "one_way_delay_ms": 5, "rate_gbps": 100},
        {"source": "b", "target": "c", "one_way_delay_ms": 8, "rate_gbps": 100},
        {"source": "a", "target": "c", "one_way_delay_ms": 40, "rate_gbps": 100},
    ],
}
IMPAIRMENTS = {
    "losses": ("--loss", "a-b=4%", "--loss", "b>c=2%", "--loss", "access=2%"),
    "bursts and duplicates": (
        *("--bursts", "a-b=enter=2%,leave=40%", "--bursts", "access=enter=1%,leave=40%"),
        *("--duplicate", "b-c=5%"),
    ),
    "overtaking and alterations": (
        *("--jitter-ms", "a-b=3", "--reorder", "a-b", "--corrupt", "access=2%", "--corrupt", "b-c=2%"),
        *("--capture-bytes", "0"),
    ),
}
# A run whose edges begin their streams so that numbers wrap in its second round.
FIRST_NUMBER = 2**32 - CHUNKS - CHUNKS // 2
WRAPPING = f"""
from testbed.__main__ import main
from testbed.run import startup
fields = startup._resend_fields
startup._resend_fields = lambda *arguments: {{**fields(*arguments), "first_number": {FIRST_NUMBER}}}
raise SystemExit(main())
"""


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("topology") / "three.json"
    path.write_text(json.dumps(TOPOLOGY), encoding="utf-8")
    return path


def options_of(topology: Path, rounds: int, chunks: int = CHUNKS) -> tuple[str, ...]:
    return (
        *("--topology", str(topology), "--payload-gb", str(REFERENCE_PAYLOAD_GB * chunks / 188)),
        *("--workload", "synthetic", "--multicast", "direct", "--rounds", str(rounds)),
        *("--repair", "source", "--capture", "all"),
    )


def analysed(run_dir: Path, rounds: int, chunks: int = CHUNKS) -> Analysis:
    """The analysis of a run in which everything was delivered in the end; every packet is accounted for."""
    analysis = analyse(Captures(find_captures([run_dir])))
    assert analysis.complete, analysis.warnings
    assert analysis.unexplained == 0
    assert analysis.partial_rounds == []
    assert sum(stream.sent for stream in analysis.streams) == rounds * PAIRS * chunks
    assert sum(stream.unrepaired or 0 for stream in analysis.streams) == 0
    return analysis


@pytest.mark.parametrize("what", IMPAIRMENTS)
def test_captures_agree_with_links_and_agents(what: str, topology: Path, tmp_path: Path) -> None:
    rounds = 5
    finished = run_json(tmp_path / "run", *options_of(topology, rounds), *IMPAIRMENTS[what])
    assert finished.code == 0, finished.errors
    assert finished.document["contributions"]["lost"] == 0
    analysis = analysed(tmp_path / "run", rounds)
    assert disagreements_with_links(tmp_path / "run", analysis) == {}
    assert disagreements_with_agents(tmp_path / "run", analysis) == {}
    assert sum(hop.lost + hop.altered for hop in analysis.hops) > 10
    if what == "bursts and duplicates":
        assert sum(stream.duplicates for stream in analysis.streams) > 10
    if what == "overtaking and alterations":
        altered = sum(hop.altered for hop in analysis.hops)
        assert altered > 10
        assert sum(hop.reordered for hop in analysis.hops) > 10
    else:
        assert analysis.repair.repaired == analysis.repair.wanted > 10
        assert analysis.repair.latencies_ms[0] > 0


def test_whatever_is_lost_on_the_last_hop_comes_again_while_numbers_wrap(topology: Path, tmp_path: Path) -> None:
    rounds, run_dir = 12, tmp_path / "run"
    options = (*options_of(topology, rounds), "--loss", "access=12%", "--resend-window-ms", "2000")
    done = subprocess.run(
        [sys.executable, "-P", "-c", WRAPPING, "run", *options, "--out", str(run_dir)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    analysis = analysed(run_dir, rounds)
    assert disagreements_with_links(run_dir, analysis) == {}
    assert disagreements_with_agents(run_dir, analysis) == {}
    results = [packet for packet in analysis.lost if packet.kind == "result"]
    chunks = {packet.chunk for packet in results}
    assert chunks & {0, 1}  # the first of a round, and the last
    assert chunks & {CHUNKS - 2, CHUNKS - 1}
    assert {(packet.number or 0) >= FIRST_NUMBER for packet in results} == {True, False}
    assert {"contribution", "nack", "heartbeat", "repair", "fetch", "fetched"} <= {
        packet.kind for packet in analysis.lost
    }


def test_what_a_killed_edge_held_is_lost_there_and_fetched(topology: Path, tmp_path: Path) -> None:
    rounds, chunks = 6, 4 * CHUNKS  # so that an edge can be met in the middle of a round
    with running(tmp_path / "run", *options_of(topology, rounds, chunks)) as run:
        run.wait_for("round 2/6")
        edge = processes_of(run, "aggregator.edge")[0]
        kill_when_reached(edge, CHUNKS)
        code, summary = run.finish()
    assert code == 0, summary["warnings"]
    analysis = analysed(tmp_path / "run", rounds, chunks)
    assert disagreements_with_links(tmp_path / "run", analysis) == {}
    assert disagreements_with_agents(tmp_path / "run", analysis) == {}
    lost = sum((stream.lost for stream in analysis.streams), Counter[str]())
    assert set(lost) == {"a-e"}
    assert lost.total() == sum(stream.repaired or 0 for stream in analysis.streams) > 0
