"""`testbed plan` and policies from outside."""

import json
from pathlib import Path

import pytest

from scheduler.errors import PolicyError
from testbed.cli import build_parser
from testbed.policies import find_policy

OWN = '''
"""Policies of a user."""

class Ring:
    name = "ring"

    def schedule(self, problem):
        from scheduler.policies.interface import Schedule
        islands = problem.islands
        odd = tuple(zip(islands[0::2], islands[1::2]))
        even = tuple(zip(islands[1::2], islands[2::2]))
        return Schedule((odd, even))

def everybody(problem):
    return [[problem.islands]]

broken = 3
nameless = type("Nameless", (), {"schedule": lambda self, problem: None})
'''


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    parsed = build_parser().parse_args(["plan", *arguments])
    assert parsed.execute(parsed) == 0
    return capsys.readouterr().out


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_json_of_one_plan(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(plan(capsys, "--policy", "triangles", "--memory-gb", "0", "--json"))
    assert list(document) == [
        *("topology", "policy", "memory_gb", "payload_gb", "feasible", "reason", "round_time_ms", "packetisation_ms"),
        *("mean_divergence_lifetime_rounds", "survival", "objective_ms", "proven_optimal", "lower_bound_ms", "rounds"),
    ]
    assert document["round_time_ms"] == pytest.approx(565.1, abs=0.5)
    assert 0 < document["packetisation_ms"] < 10


def test_json_of_a_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "square.json"
    sides = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]
    edges = [{"source": a, "target": b, "one_way_delay_ms": 20, "rate_gbps": 100} for a, b in sides]
    path.write_text(json.dumps({"nodes": [{"id": name} for name in "abcd"], "edges": edges}))
    found = plan(
        capsys, "--topology", str(path), "--policy", "search", "--clique-sizes", "2", "--payload-gb", "1.25", "--json"
    )
    document = json.loads(found)
    assert document["policy"] == "search"
    assert document["feasible"]
    assert {len(clique) for each in document["rounds"] for clique in each["cliques"]} == {2}
    assert document["proven_optimal"] is True
    assert document["lower_bound_ms"] == pytest.approx(document["objective_ms"])


def test_several_plans_come_as_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(plan(capsys, "--policy", "all", "--memory-gb", "0,32", "--json"))
    assert [(p["policy"], p["memory_gb"]) for p in document["plans"]] == [
        (policy, memory) for policy in ("all-to-all", "triangles", "pairs", "regional") for memory in (0, 32)
    ]
    infeasible = document["plans"][0]
    assert not infeasible["feasible"]
    assert infeasible["round_time_ms"] is None
    assert infeasible["packetisation_ms"] is None
    assert "clique nyc" in infeasible["reason"]


def test_all_names_policies_that_do_not_apply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pair.json"
    edge = {"source": "a", "target": "b", "one_way_delay_ms": 50, "rate_gbps": 100}
    path.write_text(json.dumps({"nodes": [{"id": "a"}, {"id": "b"}], "edges": [edge]}))
    document = json.loads(plan(capsys, "--topology", str(path), "--policy", "all", "--payload-gb", "1.25", "--json"))
    by_policy = {p["policy"]: p for p in document["plans"]}
    assert by_policy["all-to-all"]["objective_ms"] == pytest.approx(225)
    assert "region" in by_policy["triangles"]["reason"]


def test_tables_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "plan.png"
    text = plan(capsys, "--policy", "triangles", "--memory-gb", "0.1", "--plot", str(picture))
    assert "546.7" in text
    assert "link fra>sin" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_policies_from_a_file(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ring = json.loads(plan(capsys, "--policy", f"{own}:Ring", "--json"))
    assert ring["policy"] == "ring"
    assert len(ring["rounds"]) == 2
    everybody = json.loads(plan(capsys, "--policy", f"{own}:everybody", "--json"))
    assert everybody["mean_divergence_lifetime_rounds"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [("absent", "no 'absent'"), ("broken", "neither a class"), ("nameless", "needs a name")],
)
def test_bad_policies_in_a_file(own: Path, attribute: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        find_policy(f"{own}:{attribute}")


def test_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no such file"):
        find_policy(f"{tmp_path}/none.py:Name")
    path = tmp_path / "bad.py"
    path.write_text("1 / 0")
    with pytest.raises(PolicyError, match="ZeroDivisionError"):
        find_policy(f"{path}:Name")


def test_unknown_policies_name_the_known_ones() -> None:
    with pytest.raises(PolicyError, match="all-to-all, triangles, pairs, regional, pairs-line, search"):
        find_policy("squares")


@pytest.mark.parametrize(
    "arguments",
    [("--memory-gb", "-1"), ("--memory-gb", "0,x"), ("--payload-gb", "nan"), ("--clique-sizes", "1"), ("--trees", "x")],
)
def test_bad_arguments_are_refused(arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        build_parser().parse_args(["plan", *arguments])
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
