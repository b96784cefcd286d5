"""The published comparison from end to end, with few of its runs and little training."""

import json
import subprocess
import sys
from pathlib import Path

from testbed.paper.experiments import RING, schedule_key
from tests.netns.testbed.command import leftovers

TRIANGLES = schedule_key("triangles", 0.0)
TIMEOUT_S = 300

# As `testbed paper` does it, but for what is left out.
SCRIPT = f"""
import sys
from testbed.cli import run_command_line
from testbed.paper import command, methods, train

everything = command.experiments
command.experiments = lambda *given: [each for each in everything(*given) if each.key in {(TRIANGLES, RING)!r}]
methods.TRAINED_S = 1.2
train.WORKLOADS = ("digits",)
sys.argv = "testbed paper --training --plot curves.svg --json --out paper".split()
sys.exit(run_command_line())
"""


def test_few_runs_are_measured_compared_and_kept(tmp_path: Path) -> None:
    before = leftovers()
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stderr  # most rows have not been measured
    assert leftovers() == before
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "paper" / "paper.json").read_text(encoding="utf-8"))
    assert (document["complete"], document["ok"], document["not_run"]) == (True, False, {})
    rows = {row["quantity"]: row for row in document["rows"]}
    assert rows["triangles at 0 GB: feasible"]["measured"] is True
    assert rows["triangles at 0 GB: round time T, ms"]["measured"] > 565
    assert abs(rows["triangles at 0 GB: divergence lifetime A, rounds"]["deviation"]) < 0.01
    assert rows["ring all-reduce: exchange, ms"]["measured"] > 0.97 * 802.6
    assert rows["pairs at 0 GB: feasible"]["failure"] == "has not been run"
    assert {"1/2", "2/2"} <= {line.split()[0] for line in done.stderr.splitlines() if line.strip()}

    (agreement,) = document["agreements"]
    assert (agreement["method"], agreement["rounds"], agreement["equal"]) == ("triangles, overlapped", 4, True)
    curves = {curve["method"]: curve for curve in document["curves"]}
    assert {method: curve["networked"] for method, curve in curves.items()} == {
        "triangles, overlapped": False,
        "synchronous, ring all-reduce": True,
        "islands alone": False,
        "one ideal machine": False,
    }
    assert len({curve["points"][0]["loss"] for curve in curves.values()}) == 1
    ring = curves["synchronous, ring all-reduce"]["points"]
    assert [point["rounds"] for point in ring] == [0, 1, 2, 3]
    assert ring[3]["worst_loss"] == ring[3]["loss"] < ring[0]["loss"]
    # Each of nine parts goes over eight of nine links, twice, and the payload's values are carried by TCP.
    assert 0.97 < ring[1]["gb"] / (16 * 1.692) < 1.1
    assert (tmp_path / "curves.svg").stat().st_size > 0
