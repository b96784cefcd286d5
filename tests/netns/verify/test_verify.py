"""`testbed verify` on real links: right ones pass, and a wrong one is found, whoever made it wrong."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from testbed.links.interface import Link
from testbed.links.kinds import choose_link_kind
from testbed.network.emulated import EmulatedNetwork, build_network, emulated_links
from testbed.run.strain import read_stolen_ns
from testbed.scale import Scale
from testbed.topology.load import load_topology
from testbed.verify.check import check_links, check_links_quickly
from tests.netns.testbed.command import Finished, call_testbed, command_line, leftovers

CORES, ISLANDS = 14, 9


def small_topology(directory: Path, **changes: Any) -> str:
    """Two islands and the link a-b: 5 ms, 100 Gbit/s."""
    link = {"source": "a", "target": "b", "one_way_delay_ms": 5, "rate_gbps": 100, **changes}
    path = directory / "small.json"
    content = {"directed": False, "nodes": [{"id": "a"}, {"id": "b"}], "edges": [link]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def test_whole_nine_city_is_what_was_asked() -> None:
    before = leftovers()
    verified = call_testbed("verify", "--json")
    assert leftovers() == before
    document = verified.document
    wrong = {link["link"]: link["wrong"] for link in document["links"] if not link["ok"]}
    assert (verified.code, document["ok"], wrong) == (0, True, {})
    assert len(document["links"]) == 2 * (CORES + ISLANDS)
    by_name = {link["link"]: link for link in document["links"]}
    for link in load_topology("nine-city").links:
        found = by_name[f"{link.source}>{link.target}"]
        assert found["asked"]["one_way_delay_ms"] == link.one_way_delay_ms
        assert found["measured"]["one_way_delay_ms"]["median"] == pytest.approx(
            link.one_way_delay_ms, rel=0.01, abs=0.2
        )
        assert found["measured"]["rate_gbps"] == pytest.approx(link.rate_gbps, rel=0.02)
        assert found["measured"]["lost"] == found["measured"]["reordered"] == 0


ODD = {
    "a-b": {"rate_gbps": 0.1},
    "b-c": {"queue_mb": 5.0},
    "c-d": {"loss": 0.05},
    "d-e": {"jitter_ms": 3.0},
    "e-f": {"one_way_delay_ms": 0.0},
}


CALM_ATTEMPTS, MOST_ATTEMPTS = 3, 12


def test_other_physics_is_measured_right(tmp_path: Path) -> None:
    links = [
        {"source": name[0], "target": name[2], "one_way_delay_ms": 5, "rate_gbps": 100, **changes}
        for name, changes in ODD.items()
    ]
    path = tmp_path / "odd.json"
    content = {"directed": False, "nodes": [{"id": name} for name in "abcdef"], "edges": links}
    path.write_text(json.dumps(content), encoding="utf-8")
    # A machine whose hypervisor takes its processors away measures its own stalls, and a sender that is held up cannot
    # keep a short queue full. But a direction that is wrong is wrong each time.
    wrong: dict[str, list[str]] = {}
    calm = 0
    for attempt in range(MOST_ATTEMPTS):
        stolen = read_stolen_ns()
        document = call_testbed("verify", "--json", "--topology", str(path)).document
        found = {link["link"]: link["wrong"] for link in document["links"] if not link["ok"]}
        wrong = found if attempt == 0 else {link: found[link] for link in wrong.keys() & found.keys()}
        calm += read_stolen_ns() == stolen
        if not wrong or calm == CALM_ATTEMPTS:
            break
    assert wrong == {}
    by_name = {link["link"]: link for link in document["links"]}
    for name, changes in ODD.items():
        there = by_name[name.replace("-", ">")]
        for key in changes.keys() & {"rate_gbps", "loss", "jitter_ms", "one_way_delay_ms"}:
            assert there["asked"][key] == changes[key]
        assert there["measured"]["rate_gbps"] is not None


@contextmanager
def _network(topology_file: str) -> Iterator[tuple[tuple[Link, ...], EmulatedNetwork]]:
    topology = load_topology(topology_file)
    links = emulated_links(topology, Scale(), seed=1)
    built = build_network(topology, links, choose_link_kind("auto", links), "verify-test")
    try:
        yield links, built
    finally:
        built.close()


@pytest.fixture
def network(tmp_path: Path) -> Iterator[tuple[tuple[Link, ...], EmulatedNetwork]]:
    with _network(small_topology(tmp_path)) as built:
        yield built


WRONG = {
    "b-c": (lambda one: replace(one, one_way_delay_ns=one.one_way_delay_ns + 300_000), "one-way delay"),
    "c-d": (lambda one: replace(one, rate_bps=one.rate_bps * 96 // 100), "rate"),
    "d-e": (lambda one: replace(one, loss=0.02), "lost"),
    "e-f": (lambda one: replace(one, jitter_ns=5_000_000, reorder=True), "overtaken"),
    "f-g": (lambda one: replace(one, duplicate=0.02), "duplicated"),
    "g-h": (lambda one: replace(one, corrupt=0.02), "corrupted"),
}


def test_every_kind_of_change_behind_a_links_back_is_found(tmp_path: Path) -> None:
    path = tmp_path / "line.json"
    edges = [{"source": a, "target": b, "one_way_delay_ms": 5, "rate_gbps": 100} for a, b in pairwise("abcdefgh")]
    content = {"directed": False, "nodes": [{"id": name} for name in "abcdefgh"], "edges": edges}
    path.write_text(json.dumps(content), encoding="utf-8")
    with _network(str(path)) as (links, built):
        for link in links:
            if link.name in WRONG:
                built.links.change(link.b.node, link.a.node, WRONG[link.name][0](link.backward))
        findings = {finding.link: finding for finding in check_links(links, built.pids, Scale())}
    wrong = {f"{name[2]}>{name[0]}" for name in WRONG}
    assert {link for link, finding in findings.items() if not finding.ok} == wrong
    for name, (_, named) in WRONG.items():
        assert named in "; ".join(findings[f"{name[2]}>{name[0]}"].wrong)


def test_quick_check_finds_a_gross_error(network: tuple[tuple[Link, ...], EmulatedNetwork]) -> None:
    links, built = network
    assert all(finding.ok for finding in check_links_quickly(links, built.pids, Scale()))
    built.links.change("a", "b", replace(links[0].forward, one_way_delay_ns=7_000_000))
    built.links.change("b", "a", replace(links[0].backward, rate_bps=50_000_000))
    wrong = {finding.link: finding.wrong for finding in check_links_quickly(links, built.pids, Scale())}
    assert "one-way delay is 7." in wrong["a>b"][0]
    assert "rate is" in wrong["b>a"][0]


def test_link_that_is_down_is_found(network: tuple[tuple[Link, ...], EmulatedNetwork]) -> None:
    links, built = network
    built.links.set_up("a", "b", False)
    findings = {finding.link: finding for finding in check_links_quickly(links, built.pids, Scale())}
    assert {link for link, finding in findings.items() if not finding.ok} == {"a>b", "b>a"}
    assert findings["a>b"].measured["lost"] == findings["a>b"].measured["probes"] == 20


def test_interrupted_verify_leaves_nothing() -> None:
    before = leftovers()
    process = subprocess.Popen(
        command_line("verify"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("network:")
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "testbed: interrupted; everything was cleaned up\n"
    assert leftovers() == before


# A link kind from another package, whose first link is not what was asked.
LYING_KIND = """
from dataclasses import replace

from testbed.links.delayline import DelayLine


class LyingKind(DelayLine):
    name = "lying"

    def build(self, links, namespaces, run_id):
        late = replace(links[0].forward, one_way_delay_ns=links[0].forward.one_way_delay_ns + 3_000_000)
        return super().build([replace(links[0], forward=late), *links[1:]], namespaces, run_id)
"""


@pytest.fixture
def lying_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a link kind that an installed package would bring."""
    packages = tmp_path / "packages"
    metadata = packages / "lying-1.0.dist-info"
    metadata.mkdir(parents=True)
    (packages / "lying_links.py").write_text(LYING_KIND, encoding="utf-8")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: lying\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text("[testbed.links]\nlying = lying_links:LyingKind\n", encoding="utf-8")
    path = os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    return "lying"


def assert_found(finished: Finished) -> None:
    assert finished.code == 1
    assert "a>b" in finished.errors + finished.output
    assert "one-way delay is 8." in finished.errors + finished.output


def test_wrong_link_of_a_link_kind_is_exit_1_and_told_in_the_table(lying_kind: str, tmp_path: Path) -> None:
    verified = call_testbed("verify", "--links", lying_kind, "--topology", small_topology(tmp_path))
    assert_found(verified)
    verdicts = {"a>b": "WRONG", "b>a": "ok", "a-e>a-h1": "ok", "a-h1>a-e": "ok", "b-e>b-h1": "ok", "b-h1>b-e": "ok"}
    for name, verdict in verdicts.items():
        lines = [line for line in verified.output.splitlines() if line.startswith(f"{name} ")]
        assert [line.split()[-1] for line in lines] == [verdict]


def test_run_does_not_start_on_a_wrong_link(lying_kind: str, tmp_path: Path) -> None:
    before = leftovers()
    run_dir = tmp_path / "run"
    options = ("--workload", "synthetic", "--rounds", "1", "--topology", small_topology(tmp_path))
    finished = call_testbed("run", *options, "--links", lying_kind, "--out", str(run_dir))
    assert leftovers() == before
    assert_found(finished)
    assert finished.errors.count("\n") == 1
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [event["event"] for event in events[-2:]] == ["links_checked", "failed"]
    assert {link["link"]: link["ok"] for link in events[-2]["links"]}["a>b"] is False
    assert "round" not in {event["event"] for event in events}
