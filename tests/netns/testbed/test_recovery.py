"""Losses on all links, and what repair makes of them: whole runs on a small network with short rounds."""

import json
from pathlib import Path
from typing import Any

import pytest

from testbed.run.settings import REFERENCE_PAYLOAD_GB
from tests.netns.testbed.background import kill_when_reached, processes_of, running
from tests.netns.testbed.command import Finished, run_json

ISLANDS = "abcd"
CORE = {"a-b": 4.0, "b-c": 6.0, "c-d": 3.0, "d-a": 5.0}
CHUNKS = 45
PAYLOAD_GB = REFERENCE_PAYLOAD_GB * CHUNKS / 188
PAIRS = len(ISLANDS) * (len(ISLANDS) - 1)
WAN_LOSS = [f"--loss={link}=1%" for link in ("a-b", "b-c", "c-d")]
LOSS = [*WAN_LOSS, "--loss=access=0.5%"]


def write_topology(path: Path, access_one_way_delay_ms: float) -> Path:
    """Four islands in a ring, some milliseconds apart."""
    links = [
        {"source": name[0], "target": name[2], "one_way_delay_ms": delay_ms, "rate_gbps": 100}
        for name, delay_ms in CORE.items()
    ]
    nodes = [{"id": name, "access_one_way_delay_ms": access_one_way_delay_ms} for name in ISLANDS]
    path.write_text(json.dumps({"directed": False, "graph": {"name": "ring"}, "nodes": nodes, "edges": links}))
    return path


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topology(tmp_path_factory.mktemp("topology") / "ring.json", 0.1)


def options_of(topology: Path, rounds: int) -> list[str]:
    return [
        *("--topology", str(topology), "--policy", "all-to-all", "--payload-gb", str(PAYLOAD_GB)),
        *("--workload", "synthetic", "--rounds", str(rounds)),
    ]


def run_ring(topology: Path, directory: Path, rounds: int, *options: str) -> Finished:
    return run_json(directory, *options_of(topology, rounds), *options)


def assert_all_delivered(summary: dict[str, Any], rounds: int) -> None:
    counts = summary["contributions"]
    assert counts["sent"] == rounds * PAIRS * CHUNKS
    assert (counts["delivered"], counts["lost"]) == (counts["sent"], 0)
    assert summary["exact"] is True
    assert summary["digests_equal"] is True


def test_with_source_repair_everything_is_delivered(topology: Path, tmp_path: Path) -> None:
    rounds = 50
    finished = run_ring(topology, tmp_path / "run", rounds, *LOSS, "--repair", "source")
    assert finished.code == 0, finished.errors
    summary = finished.document
    assert_all_delivered(summary, rounds)
    # Of 27000 contributions some 700 are lost on three core links and on uplinks, and some 10 results for each edge.
    assert summary["contributions"]["repaired"] > 200
    assert summary["repair"]["edges"]["repairs"] > 10
    assert summary["repair"]["hosts"]["answers"] >= summary["repair"]["hosts"]["fetches_sent"] / 2 > 50


def test_without_it_what_the_wan_lost_is_counted(topology: Path, tmp_path: Path) -> None:
    rounds = 6
    finished = run_ring(topology, tmp_path / "run", rounds, *LOSS)
    assert finished.code == 1, finished.errors
    summary = finished.document
    counts = summary["contributions"]
    assert counts["sent"] == rounds * PAIRS * CHUNKS
    assert counts["delivered"] + counts["lost"] == counts["sent"]
    assert 10 < counts["lost"] < 0.08 * counts["sent"]
    assert summary["results"]["partial"] > 0
    # Every chunk's sum, and so its mean, is that of the contributors that it names.
    assert summary["exact"] is True
    assert any(f"{counts['lost']} contributions were lost" in warning for warning in summary["warnings"])
    lost = sum(
        report["expected"] - report["delivered"]
        for line in (tmp_path / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines()
        if (event := json.loads(line))["event"] == "round"
        for report in event["done"].values()
    )
    assert lost == counts["lost"]


def test_bursts_on_the_last_hop_are_repaired_by_the_edges_alone(topology: Path, tmp_path: Path) -> None:
    rounds = 8
    bursts = [f"--bursts={name}-e>{name}-h1=enter=4%,leave=40%" for name in ISLANDS]
    finished = run_ring(topology, tmp_path / "run", rounds, *bursts, "--resend-window-ms=1000")
    assert finished.code == 0, finished.errors
    summary = finished.document
    assert_all_delivered(summary, rounds)
    edges = summary["repair"]["edges"]
    # One in eleven of 1440 results is lost, often several in a row; and so are repairs.
    assert summary["contributions"]["repaired"] > 100
    assert edges["repairs"] > 50
    assert edges.get("gone", 0) == 0


def test_reordering_alone_is_hardly_ever_repaired(tmp_path: Path) -> None:
    rounds = 8
    topology = write_topology(tmp_path / "far.json", 5.0)
    finished = run_ring(topology, tmp_path / "run", rounds, "--jitter-ms=access=3", "--reorder=access")
    assert finished.code == 0, finished.errors
    summary = finished.document
    assert_all_delivered(summary, rounds)
    assert summary["repair"]["hosts"]["reordered"] > 50
    assert summary["repair"]["edges"].get("repairs", 0) <= 0.001 * summary["results"]["complete"]


def test_dead_edges_round_is_fetched_from_the_sources(topology: Path, tmp_path: Path) -> None:
    rounds = 8
    with running(tmp_path / "run", *options_of(topology, rounds), "--repair", "source") as run:
        run.wait_for("round 2/8")
        edge = processes_of(run, "aggregator.edge")[0]
        kill_when_reached(edge, CHUNKS)
        code, summary = run.finish()
    assert code == 0, summary["warnings"]
    assert summary["edge_restarts"] == 1
    assert_all_delivered(summary, rounds)
    assert summary["contributions"]["repaired"] > 0
    assert summary["repair"]["hosts"]["answers"] >= summary["contributions"]["repaired"]
