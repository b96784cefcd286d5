"""The main job end to end: real namespaces, links, multicast, packets and training."""

import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agents.exchange_area import chunk_count
from testbed.run.processes import pinned_environment, python_command
from testbed.topology.load import load_topology
from tests.netns.testbed.command import Finished, leftovers, run_json

ISLANDS = 9
VALUES, VALUES_PER_CHUNK = 418_018, 2227
CHUNKS = chunk_count(VALUES, VALUES_PER_CHUNK)

POLICIES = {
    "all-to-all": {"memory": "32", "rounds": 3, "contributions": 3 * 72},
    "triangles": {"memory": "0", "rounds": 4, "contributions": 4 * 18},
    "pairs": {"memory": "0", "rounds": 9, "contributions": 9 * 8},
    "regional": {"memory": "0", "rounds": 2, "contributions": 2 * 18},
}


@pytest.fixture(scope="module", params=sorted(POLICIES))
def synthetic_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Finished]:
    """One finished run of `synthetic` under each policy."""
    policy: str = request.param
    options = POLICIES[policy]
    before = leftovers()
    run_dir = tmp_path_factory.mktemp(policy) / "run"
    rounds, memory = str(options["rounds"]), str(options["memory"])
    finished = run_json(
        run_dir,
        *("--workload", "synthetic", "--policy", policy, "--memory-gb", memory, "--rounds", rounds),
        *("--multicast", "direct"),  # tests/netns/multicast has the others
    )
    assert leftovers() == before
    return policy, finished


def test_run_is_exact_and_loses_nothing(synthetic_run: tuple[str, Finished]) -> None:
    policy, finished = synthetic_run
    assert finished.code == 0, finished.errors
    summary = finished.document
    expected = int(POLICIES[policy]["contributions"]) * CHUNKS
    assert summary["exact"] is True
    assert summary["digests_equal"] is True
    assert summary["contributions"] == {"sent": expected, "delivered": expected, "lost": 0, "repaired": 0}
    assert summary["results"]["partial"] == summary["results"]["bypassed"] == 0
    assert summary["links_kind"] == "delayline"
    assert summary["multicast_plane"] == "direct"


def test_each_link_carries_each_stream_once(synthetic_run: tuple[str, Finished]) -> None:
    _, finished = synthetic_run
    summary = finished.document
    topology = load_topology("nine-city")
    payload_bytes = summary_payload_bytes(summary)
    streams = planned_streams(summary)
    measured = {(load["source"], load["target"]): load["measured_bytes"] for load in summary["links"]}
    core = {(link.source, link.target) for link in topology.links}
    assert core <= set(measured)
    assert sum(streams.values()) > 0
    for link in core:
        assert measured[link] == pytest.approx(streams.get(link, 0) * payload_bytes, rel=0.02, abs=10_000), link


def summary_payload_bytes(summary: dict[str, Any]) -> int:
    manifest = json.loads((Path(summary["run_dir"]) / "manifest.json").read_text(encoding="utf-8"))
    settings = manifest["settings"]
    return round(settings["payload_gb"] * 1e9 * settings["scale"]["rate_scale"])


def planned_streams(summary: dict[str, Any]) -> dict[tuple[str, str], int]:
    """How many streams each core link should have carried, counted from the plan in the manifest."""
    manifest = json.loads((Path(summary["run_dir"]) / "manifest.json").read_text(encoding="utf-8"))
    rounds = manifest["plan"]["rounds"]
    streams: dict[tuple[str, str], int] = {}
    for number in range(summary["rounds"]):
        for flow in rounds[number % len(rounds)]["flows"]:
            for source, target in flow["links"]:
                streams[source, target] = streams.get((source, target), 0) + 1
    return streams


def test_run_directory_holds_what_was_done(synthetic_run: tuple[str, Finished]) -> None:
    policy, finished = synthetic_run
    summary = finished.document
    run_dir = Path(summary["run_dir"])
    assert json.loads((run_dir / "summary.json").read_text(encoding="utf-8")) == summary
    with (run_dir / "rounds.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["round"]) for row in rows] == list(range(int(POLICIES[policy]["rounds"])))
    assert sum(int(row["delivered"]) for row in rows) == summary["contributions"]["delivered"]
    events = [json.loads(line)["event"] for line in (run_dir / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert events.count("round") == len(rows)
    assert events[-1] == "finished"
    manifest = json.loads((run_dir / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["settings"]["policy"] == policy
    assert {"kernel", "cpu", "versions", "clock", "topology", "plan"} <= set(manifest)


def test_divergence_lifetime_is_measured_as_planned(synthetic_run: tuple[str, Finished]) -> None:
    policy, finished = synthetic_run
    measured = finished.document["measured"]["mean_divergence_lifetime_rounds"]
    planned = finished.document["predicted"]["mean_divergence_lifetime_rounds"]
    if policy == "regional":
        assert measured is None
    else:
        assert measured == pytest.approx(planned, rel=1e-6)
        shared = min(len(finished.document[side]["survival"]) for side in ("measured", "predicted"))
        curves = [finished.document[side]["survival"][:shared] for side in ("measured", "predicted")]
        assert curves[0] == pytest.approx(curves[1])
    with (Path(finished.document["run_dir"]) / "mixing.csv").open(encoding="utf-8") as file:
        weights = list(csv.DictReader(file))
    of_nyc = [float(row["weight"]) for row in weights if (row["round"], row["island"]) == ("0", "nyc")]
    assert sum(of_nyc) == pytest.approx(1)
    assert of_nyc == pytest.approx([1 / len(of_nyc)] * len(of_nyc))


@pytest.mark.parametrize(
    ("policy", "memory", "overlap", "rounds"),
    [("all-to-all", "32", "0", 20), ("triangles", "0", "0", 20), ("triangles", "0", "1", 6)],
)
def test_digits_give_the_same_digests_as_one_plain_process(
    policy: str, memory: str, overlap: str, rounds: int, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    options = ("--policy", policy, "--memory-gb", memory, "--rounds", str(rounds), "--seed", "5", "--overlap", overlap)
    finished = run_json(run_dir, *options)
    assert finished.code == 0, finished.errors
    accuracy = finished.document["accuracy"]
    assert list(accuracy) == [island.id for island in load_topology("nine-city").islands]
    if rounds == 20:
        assert min(accuracy.values()) >= 0.94
    events = map(json.loads, (run_dir / "events.jsonl").read_text(encoding="utf-8").splitlines())
    networked = [event["applied"] for event in events if event["event"] == "round"]
    with (run_dir / "rounds.csv").open(encoding="utf-8") as file:
        steps = [int(row["steps"]) for row in csv.DictReader(file)]
    assert sum(steps) == finished.document["training"]["steps"] >= rounds
    islands = [island.id for island in load_topology("nine-city").islands]
    plan = json.loads((run_dir / "manifest.json").read_text(encoding="utf-8"))["plan"]
    schedule = [
        [[islands.index(member) for member in clique] for clique in planned["cliques"]] for planned in plan["rounds"]
    ]
    options = {
        "--workload": "digits",
        "--islands": ISLANDS,
        "--seed": 5,
        "--rounds": rounds,
        "--values": VALUES,
        "--values-per-chunk": VALUES_PER_CHUNK,
        "--schedule": json.dumps(schedule),
        "--steps": json.dumps(steps),
        "--overlap": overlap,
    }
    reference = subprocess.run(
        python_command("agents.reference", *(str(word) for option in options.items() for word in option)),
        env=pinned_environment("reference"),
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    outcome = json.loads(reference.stdout)
    assert len(networked) == rounds
    for digest in ("digest", "parameters_digest"):
        plain = [dict(zip(islands, digests, strict=True)) for digests in outcome[f"{digest}s"]]
        assert [{island: report[digest] for island, report in applied.items()} for applied in networked] == plain
        assert len({digest for digests in plain for digest in digests.values()}) > 1
    evaluated = dict(zip(islands, outcome["evaluations"], strict=True))
    assert finished.document["evaluations"] == evaluated
