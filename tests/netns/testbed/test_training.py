"""Training over the emulated network: a module of a user's, with overlap, and the ring all-reduce baseline."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from scheduler.ring import best_ring
from testbed.topology.load import load_topology
from tests.documentation import python_block
from tests.netns.testbed.command import call_testbed, leftovers

ISLANDS = load_topology("nine-city").island_ids


@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: vagrant/provision.sh --torch")
def test_the_documented_module_trains_across_nine_islands_with_overlap(tmp_path: Path) -> None:
    """The command of the page, but for --json, fewer rounds, and the plane that is soonest ready."""
    (tmp_path / "waves.py").write_text(python_block("workloads.md"), encoding="utf-8")
    arguments = "--workload waves.py:Waves --policy triangles --memory-gb 0 --overlap 1 --multicast direct"
    finished = call_testbed("run", *arguments.split(), "--rounds", "8", "--out", "out", "--json", directory=tmp_path)
    assert finished.code == 0, finished.errors
    summary = finished.document
    assert (summary["exact"], summary["digests_equal"], summary["contributions"]["lost"]) == (True, True, 0)
    assert sorted(summary["evaluations"]) == sorted(ISLANDS)
    training = summary["training"]
    # 8 rounds of 565 + 4 + 250 ms, less the last 250, have room for 31 steps of 200 ms.
    assert (training["overlap"], training["steps"]) == (1, 31)
    assert training["busy_fraction"] == pytest.approx(31 * 200 / training["elapsed_ms"])
    assert 0.1 < training["busy_fraction"] <= 1.0
    assert summary["values"] == {"saturated": 0, "non_finite": 0, "denormal": 0}
    rounds = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    applied = [event["applied"] for event in rounds if event["event"] == "round"]
    last = {report["parameters_digest"] for report in applied[-1].values()}
    assert len(last) == len(ISLANDS)  # each has trained since it sent


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("ring-tcp", "5"),
        pytest.param(
            "ring-gloo",
            "3",
            marks=pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: vagrant/provision.sh --torch"),
        ),
    ],
)
def test_ring_all_reduce_takes_at_least_what_physics_wants_and_trains_alike(
    name: str, steps: str, tmp_path: Path
) -> None:
    before = leftovers()
    finished = call_testbed("baseline", name, "--steps", steps, "--json", "--out", str(tmp_path / "ring"))
    assert finished.code == 0, finished.errors
    assert leftovers() == before
    summary = finished.document
    ring = best_ring(load_topology("nine-city"), 1.692)
    assert summary["islands"] == list(ring.islands)
    assert summary["predicted"]["pipelined_ms"] == ring.pipelined_ms
    measured = summary["measured"]
    # Headers come on top of the payload's values; no part can be sooner than the links carry it.
    assert measured["exchange_ms"]["median"] > 0.97 * ring.pipelined_ms
    assert measured["step_ms"] >= 200 + measured["exchange_ms"]["mean"] - 1
    # Each of nine parts goes over eight of nine links, twice.
    assert 0.97 < measured["core_gb_per_step"] / (16 * 1.692) < 1.1
    assert measured["idle_fraction"] == pytest.approx(measured["exchange_ms"]["mean"] / measured["step_ms"])
    assert sorted(summary["evaluations"]) == sorted(ISLANDS)
    assert len({json.dumps(evaluation) for evaluation in summary["evaluations"].values()}) == 1
