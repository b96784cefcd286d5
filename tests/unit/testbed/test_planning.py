"""The planning process: plans as a run would, and nothing that a user's policy does reaches the run."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.run.planning import Planner, PlanRequest, plan_policy
from testbed.run.settings import RunSettings
from testbed.topology.load import load_topology

ROOT = Path(__file__).parents[3]
SETTINGS = RunSettings()
TOPOLOGY = load_topology("nine-city")
POLICY = "def mine(problem):\n    {}\n"
TIME_LIMIT_S = 30.0


@pytest.fixture
def planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planner]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the process shall plan with this tree, wherever it was installed from
    made = Planner("cafe0123", tmp_path)
    yield made
    made.stop()
    made.stop()


def request(policy: str, memory_gb: float = 32) -> PlanRequest:
    return PlanRequest(SETTINGS, TOPOLOGY, policy, memory_gb)


def write(path: Path, body: str) -> str:
    """A policy file with this body; the time of the file stays the same."""
    path.write_text(POLICY.format(body), encoding="utf-8")
    os.utime(path, (1e9, 1e9))
    return f"{path}:mine"


def test_plans_are_those_of_the_run_itself(planner: Planner) -> None:
    for policy in ("all-to-all", "triangles"):
        assert planner.plan(request(policy), TIME_LIMIT_S) == plan_policy(SETTINGS, TOPOLOGY, policy)


def test_what_was_planned_ahead_is_there(planner: Planner) -> None:
    planner.start([request("pairs"), request("regional")])
    first = planner.plan(request("all-to-all"), TIME_LIMIT_S)
    began = time.monotonic()
    assert planner.plan(request("all-to-all"), TIME_LIMIT_S) == first
    assert planner.plan(request("pairs"), TIME_LIMIT_S) == plan_policy(SETTINGS, TOPOLOGY, "pairs")
    assert time.monotonic() - began < TIME_LIMIT_S


def test_what_cannot_be_planned_is_refused_with_the_reason(planner: Planner) -> None:
    with pytest.raises(TestbedError, match="unknown policy 'best'"):
        planner.plan(request("best"), TIME_LIMIT_S)
    with pytest.raises(TestbedError, match="all-to-all cannot run with 0 GB"):
        planner.plan(request("all-to-all", memory_gb=0), TIME_LIMIT_S)
    assert planner.plan(request("all-to-all"), TIME_LIMIT_S).feasible


def test_a_file_is_read_again_each_time(planner: Planner, tmp_path: Path) -> None:
    policy = write(tmp_path / "mine.py", "return [[problem.islands[:2]]]")
    assert planner.plan(request(policy), TIME_LIMIT_S).rounds[0].cliques == (("nyc", "chi"),)
    write(tmp_path / "mine.py", "return [[problem.islands[:3]]]")
    assert planner.plan(request(policy), TIME_LIMIT_S).rounds[0].cliques == (("nyc", "chi", "lax"),)
    assert list(tmp_path.glob("__pycache__")) == []


def test_nobody_waits_for_a_plan_that_was_given_up(planner: Planner, tmp_path: Path) -> None:
    threading.Timer(0.3, planner.give_up).start()
    with pytest.raises(TestbedError, match="no plan"):
        planner.plan(request(write(tmp_path / "mine.py", "while True: pass")), 1000)


BAD = {
    "raises": ("return 1 / 0", "ZeroDivisionError: division by zero"),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "dies": ("import os; os._exit(7)", "the planning process ended (exit status 7)"),
    "never ends": ("while True: pass", "no plan within 3 s"),
    "returns nothing": ("return None", "not rounds of cliques"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_a_bad_policy_harms_nothing(case: str, planner: Planner, tmp_path: Path) -> None:
    body, named = BAD[case]
    with pytest.raises(TestbedError) as caught:
        planner.plan(request(write(tmp_path / "mine.py", body)), 3 if case == "never ends" else TIME_LIMIT_S)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
    assert planner.plan(request("regional"), TIME_LIMIT_S).feasible
