"""Whole runs on every plane: all policies, changes between them, the ablations, several hosts."""

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.topology import Island, Topology, both_ways
from testbed.multicast.frr import missing_package
from testbed.topology.files import write_topology
from testbed.topology.load import load_topology
from tests.netns.testbed.command import leftovers, run_json

NEEDS_FRR = pytest.mark.skipif(missing_package() is not None, reason=str(missing_package()))
# A quarter of the reference payload: what is counted is the same, in less time.
SMALL = ("--workload", "synthetic", "--payload-gb", "0.432")
CHUNKS, WIRE_BYTES = 48, 432_000
READY_WITHIN_MS = {"direct": 500, "pim": 3000}


def check_whole(summary: dict[str, Any], contributions: int, copies: bool = False) -> None:
    """Nothing lost, sums exact, digests equal; and each core link carried what the plan in the manifest says."""
    assert summary["exact"] is True
    assert summary["digests_equal"] is True
    assert summary["contributions"] == {
        "sent": contributions * CHUNKS,
        "delivered": contributions * CHUNKS,
        "lost": 0,
        "repaired": 0,
    }
    assert summary["results"]["partial"] == 0
    core = {link.id for link in load_topology("nine-city").links}
    loads = [load for load in summary["links"] if (load["source"], load["target"]) in core]
    assert len(loads) == len(core)
    for load in loads:
        streams = load["unicast_streams"] if copies else load["planned_streams"]
        allowed = max(0.02 * streams * WIRE_BYTES, load["allowed_bytes"])
        assert abs(load["measured_bytes"] - streams * WIRE_BYTES) <= allowed, load
        assert load["dropped_frames"] == 0


@pytest.mark.parametrize("plane", ["direct", pytest.param("pim", marks=NEEDS_FRR)])
def test_all_policies_follow_each_other_without_a_loss(plane: str, tmp_path: Path) -> None:
    before = leftovers()
    rounds = {"all-to-all": 1, "triangles": 4, "pairs": 9, "regional": 1}
    contributions = 72 + 4 * 18 + 9 * 8 + 18
    finished = run_json(
        tmp_path / "run",
        *SMALL,
        *("--multicast", plane, "--rounds", str(sum(rounds.values()))),
        *("--policy", "all-to-all", "--policy-schedule", "2=triangles,6=pairs,15=regional"),
    )
    assert finished.code == 0, finished.errors
    summary = finished.document
    check_whole(summary, contributions)
    assert summary["multicast_plane"] == plane
    assert {epoch["policy"]: epoch["rounds"] for epoch in summary["epochs"]} == rounds
    assert [epoch["first_round"] for epoch in summary["epochs"]] == [0, 1, 5, 14]
    assert summary["multicast"]["saving"] > 0.1
    ready = [
        event
        for event in map(json.loads, (tmp_path / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines())
        if event["event"] == "multicast_ready"
    ]
    assert [event["epoch"] for event in ready] == [0, 1, 2, 3]
    assert len(ready[0]["paths"]) == 72
    assert ready[0]["installed_ms"] <= READY_WITHIN_MS[plane]
    if plane == "pim":
        assert "ip igmp version 3" in (tmp_path / "run" / "frr" / "nyc" / "pimd.conf").read_text(encoding="utf-8")
    assert leftovers() == before


def test_unicast_loads_the_links_with_a_copy_per_receiver(tmp_path: Path) -> None:
    finished = run_json(tmp_path / "run", *SMALL, "--multicast", "unicast", "--rounds", "1")
    assert finished.code == 0, finished.errors
    summary = finished.document
    check_whole(summary, 72, copies=True)
    assert (summary["multicast_plane"], summary["aggregation"]) == ("unicast", "edge")
    up = next(load for load in summary["links"] if (load["source"], load["target"]) == ("nyc-h1", "nyc-e"))
    assert up["planned_streams"] == 8
    assert up["measured_bytes"] == pytest.approx(8 * WIRE_BYTES, rel=0.02)
    assert summary["multicast"]["saving"] == pytest.approx(0, abs=0.01)


def test_host_aggregation_brings_every_stream_to_the_host(tmp_path: Path) -> None:
    finished = run_json(tmp_path / "run", *SMALL, "--aggregation", "host", "--multicast", "direct", "--rounds", "1")
    assert finished.code == 0, finished.errors
    summary = finished.document
    check_whole(summary, 72)
    assert (summary["aggregation"], summary["engine"]) == ("host", "passthrough")
    assert summary["results"] == {"complete": 0, "partial": 0, "bypassed": 72 * CHUNKS}
    down = next(load for load in summary["links"] if (load["source"], load["target"]) == ("nyc-e", "nyc-h1"))
    assert down["planned_streams"] == 8
    assert down["measured_bytes"] == pytest.approx(8 * WIRE_BYTES, rel=0.02)


@NEEDS_FRR
def test_nine_islands_of_two_hosts_are_exact(tmp_path: Path) -> None:
    finished = run_json(
        tmp_path / "run",
        *SMALL,
        *("--multicast", "pim", "--hosts-per-island", "2", "--rounds", "2"),
        *("--policy", "triangles", "--memory-gb", "0"),
    )
    assert finished.code == 0, finished.errors
    summary = finished.document
    check_whole(summary, 2 * 18)
    assert summary["measured"]["lan_exchange_ms"] > 0
    hosts = {name for event in _rounds(tmp_path) for name in event["done"]}
    assert len(hosts) == 18
    # One access link for both hosts of an island: it carries one payload each way per round.
    up = next(load for load in summary["links"] if (load["source"], load["target"]) == ("nyc-lan", "nyc-e"))
    assert up["measured_bytes"] == pytest.approx(2 * WIRE_BYTES, rel=0.02)


def test_four_islands_of_two_hosts_are_exact(tmp_path: Path) -> None:
    names = "abcd"
    links = [both_ways(a, b, 5.0 + number, 100.0) for number, (a, b) in enumerate(("ab", "bc", "cd", "da", "ac"))]
    topology = Topology(
        "four", tuple(Island(name) for name in names), (), tuple(link for pair in links for link in pair)
    )
    write_topology(topology, tmp_path / "four.json")
    finished = run_json(
        tmp_path / "run",
        *SMALL,
        *("--topology", str(tmp_path / "four.json"), "--hosts-per-island", "2"),
        *("--rounds", "3", "--multicast", "direct"),
    )
    assert finished.code == 0, finished.errors
    summary = finished.document
    assert summary["exact"] is True
    assert summary["digests_equal"] is True
    assert summary["contributions"]["delivered"] == 3 * 12 * CHUNKS
    for event in _rounds(tmp_path):
        # Half of the chunks at each host, from three islands.
        assert {report["delivered"] for report in event["done"].values()} == {3 * CHUNKS // 2}


def _rounds(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "round"]
