"""A running experiment is looked at and changed: by the command line, by a client, and by its scenario."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import testbed.client
from testbed.errors import TestbedError
from testbed.run.state import STATE_ROOT
from tests.netns.testbed.command import call_testbed, command_line

WAIT_S = 60.0
TOPOLOGY = {
    "directed": False,
    "nodes": [{"id": name} for name in "abc"],
    "edges": [
        {"source": "a", "target": "b", "one_way_delay_ms": 5, "rate_gbps": 100},
        {"source": "b", "target": "c", "one_way_delay_ms": 10, "rate_gbps": 100},
        {"source": "a", "target": "c", "one_way_delay_ms": 40, "rate_gbps": 100},
    ],
}
SCENARIO = """
[[event]]
at = "300ms"
link = "a-c"
one_way_delay_ms = 44
loss = "2%"

[[event]]
at = "600ms"
link = "a-c"
down = true

[[event]]
at = "1h"
link = "a-c"
up = true
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live")
    (path / "three.json").write_text(json.dumps(TOPOLOGY), encoding="utf-8")
    (path / "scenario.toml").write_text(SCENARIO.replace("1h", "60min"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run_id(directory: Path) -> Iterator[str]:
    """A run of many rounds, ended by an interrupt."""
    options = ("--topology", str(directory / "three.json"), "--scenario", str(directory / "scenario.toml"))
    process = subprocess.Popen(
        command_line(
            *("run", "--workload", "synthetic", "--payload-gb", "0.2", "--rounds", "100000"),
            *("--out", str(directory / "run"), *options, "--loss", "b>c=0.5%"),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while lines[-1] and not lines[-1].startswith("round"):
            lines.append(process.stdout.readline())
        assert lines[-1], process.communicate()[1]
        # Nobody reads on: a full pipe must not stop the run.
        drained = subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL)
        yield _own_run(directory / "run")
    finally:
        process.send_signal(2)
        process.wait(WAIT_S)
        drained.wait(WAIT_S)
    assert process.returncode == 130


def _own_run(run_dir: Path) -> str:
    for owner in STATE_ROOT.glob("[!.]*/owner.json"):
        if json.loads(owner.read_text(encoding="utf-8"))["run_dir"] == str(run_dir):
            return owner.parent.name
    raise AssertionError("the run has no mark")


def _events(directory: Path, kind: str) -> list[dict[str, Any]]:
    lines = (directory / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def _wait_for_events(directory: Path, kind: str, count: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + WAIT_S
    while len(found := _events(directory, kind)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_status_tells_what_runs(run_id: str, directory: Path) -> None:
    status = call_testbed("status", "--run", run_id, "--json").document
    assert status["state"] == "running"
    assert status["round"] >= 0
    assert (status["run"], status["topology"], status["run_dir"]) == (run_id, "three", str(directory / "run"))
    assert run_id in call_testbed("status", "--run", run_id).output


def test_links_are_shown_as_they_were_asked(run_id: str) -> None:
    links = {link["link"]: link for link in call_testbed("link", "show", "--run", run_id, "--json").document["links"]}
    assert len(links) == 2 * (3 + 3)
    assert links["a>b"]["one_way_delay_ms"] == 5
    assert links["b>c"]["loss"] == 0.005
    assert links["c>b"]["loss"] == 0


def test_link_set_changes_what_is_named_and_nothing_else(run_id: str, directory: Path) -> None:
    def in_force() -> dict[str, dict[str, Any]]:
        with testbed.client.connect(run_id) as run:
            return {link["link"]: link for link in run.call("link_show", link="a-b")["links"]}

    before = in_force()
    told = call_testbed(
        *("link", "set", "a>b", "--run", run_id, "--json"), *("--one-way-delay-ms", "7.5", "--loss", "0.1%")
    )
    assert told.code == 0, told.errors
    expected = {**before["a>b"], "one_way_delay_ms": 7.5, "loss": 0.001}
    assert told.document["links"] == [expected]
    assert in_force() == {"a>b": expected, "b>a": before["b>a"]}
    event = _events(directory, "link_set")[-1]
    assert (event["link"], event["values"]) == ("a>b", {"one_way_delay_ms": 7.5, "loss": "0.1%"})
    assert event["links"] == [expected]


REFUSED = {
    "unknown link": (("a-x", "--loss", "1%"), "a-x"),
    "bare number": (("a-b", "--loss", "0.01"), "percent"),
    "half a link down": (("a>b", "--down"), "a-b"),
    "jitter above the delay": (("a-b", "--jitter-ms", "50"), "jitter"),
    "nothing named": (("a-b",), "name what to change"),
    "no number": (("a-b", "--one-way-delay-ms", "5ms"), "--one-way-delay-ms"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_wrong_changes_are_refused_in_one_line(case: str, run_id: str) -> None:
    arguments, named = REFUSED[case]
    with testbed.client.connect(run_id) as run:
        before = run.call("link_show", link="a-b")
        refused = call_testbed("link", "set", "--run", run_id, *arguments)
        assert run.call("link_show", link="a-b") == before
    assert refused.code == 2
    assert refused.output == ""
    assert refused.errors.count("\n") == 1
    assert named in refused.errors


def test_unknown_run_is_refused_with_those_that_run(run_id: str) -> None:
    with pytest.raises(TestbedError, match=run_id):
        testbed.client.connect("nonesuch")


def test_scenario_is_played_and_recorded(run_id: str, directory: Path) -> None:
    played = _wait_for_events(directory, "scenario", 2)
    assert [(event["number"], event["at_ms"]) for event in played] == [(1, 300.0), (2, 600.0)]
    first, second = played
    start_ns = _events(directory, "round")[0]["start_ns"]
    for event in played:
        assert event["monotonic_ns"] >= start_ns + event["at_ms"] * 1e6
        assert event["late_ms"] >= 0
    assert {link["link"]: (link["one_way_delay_ms"], link["loss"]) for link in first["links"]} == {
        "a>c": (44, 0.02),
        "c>a": (44, 0.02),
    }
    assert [link["up"] for link in second["links"]] == [False, False]
    with testbed.client.connect(run_id) as run:
        assert [link["up"] for link in run.call("link_show", link="a-c")["links"]] == [False, False]
        assert [link["up"] for link in run.call("link_set", link="a-c", values={"up": True})["links"]] == [True, True]


BAD_OPTIONS = {
    "unknown link": (["--loss", "a-x=1%"], "a-b, b-c, a-c"),
    "loss without percent": (["--loss", "a-b=0.01"], "percent"),
    "loss without a link": (["--loss", "1%"], "LINK=VALUE"),
    "jitter above the delay": (["--jitter-ms", "a-b=6"], "jitter"),
    "bursts that are none": (["--bursts", "a-b=1%"], "bursts"),
    "scenario that is missing": (["--scenario", "nowhere.toml"], "nowhere.toml"),
    "scenario with an unknown link": (["--scenario", "bad.toml"], "event 1"),
}


@pytest.mark.parametrize("case", sorted(BAD_OPTIONS))
def test_wrong_options_of_run_are_refused(case: str, directory: Path, tmp_path: Path) -> None:
    options, named = BAD_OPTIONS[case]
    (tmp_path / "bad.toml").write_text('[[event]]\nat = "1s"\nlink = "a-x"\nloss = "1%"\n', encoding="utf-8")
    refused = call_testbed("run", "--topology", str(directory / "three.json"), *options, directory=tmp_path)
    assert refused.code == 2, refused
    assert refused.errors.count("\n") == 1
    assert named in refused.errors
    assert not (tmp_path / "runs").exists()
