"""Policy swaps under a running job: what each took, and that nothing was lost. As root:

python tests/bench/bench_swaps.py [--swaps N] [options of testbed run]
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]
os.environ["PYTHONPATH"] = str(ROOT)

from testbed.client import Client, connect  # noqa: E402
from testbed.errors import TestbedError  # noqa: E402
from testbed.run.state import STATE_ROOT  # noqa: E402

ISLANDS = ("nyc", "chi", "lax", "lon", "fra", "ams", "tyo", "hkg", "sin")
ORDER = ("triangles", "FILE", "pairs", "regional", "FILE", "all-to-all")
PATIENCE_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Policy swaps under a running job.")
    parser.add_argument("--swaps", type=int, default=24)
    arguments, options = parser.parse_known_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Linux {os.uname().release}")
    with tempfile.TemporaryDirectory() as directory:
        out, mine = Path(directory) / "run", Path(directory) / "mine.py"
        command = [sys.executable, "-P", "-m", "testbed", "run", "--rounds", "200", "--out", str(out), *options]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                with connect(_run_id(out)) as run:
                    _wait_for_rounds(run)
                    swaps = [
                        _swap(run, policy, mine, number)
                        for number, policy in zip(range(arguments.swaps), itertools.cycle(ORDER), strict=False)
                    ]
                    run.call("stop")
                process.wait(PATIENCE_S)
            finally:
                process.terminate()
        _print(swaps)
        return _judge(out, process.returncode, swaps)


def _run_id(out: Path) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for owner in STATE_ROOT.glob("[!.]*/owner.json"):
            if json.loads(owner.read_text(encoding="utf-8"))["run_dir"] == str(out):
                return owner.parent.name
        time.sleep(0.05)
    raise TestbedError("the run has not begun")


def _wait_for_rounds(run: Client) -> None:
    while (run.call("status")["round"] or 0) < 2:
        time.sleep(0.1)


def _swap(run: Client, policy: str, mine: Path, number: int) -> dict:
    """Swap as soon as the swap before is in force; a file has other cliques each time."""
    if policy == "FILE":
        turned = ISLANDS[number % 9 :] + ISLANDS[: number % 9]
        cliques = [turned[:4], turned[4:]]
        mine.write_text(f"def mine(problem):\n    return [{cliques}, [problem.islands]]\n", encoding="utf-8")
        policy = f"{mine}:mine"
    swap = run.call("policy_set", policy=policy)["swap"]
    while swap["state"] not in {"in force", "failed"}:
        time.sleep(0.02)
        swap = run.call("policy_show", swap=swap["number"])["swap"]
    return swap


def _print(swaps: list[dict]) -> None:
    print("swap  policy       asked in  in force from  planning  installing  in force after, ms")
    for swap in swaps:
        steps = swap["steps_ms"]
        name, first_round = swap["policy"].rpartition("/")[2], swap["first_round"] or -1
        print(
            f"{swap['number'] + 1:>4}  {name:<12} {swap['asked_in_round'] + 1:>8}  {first_round + 1:>13}"
            f"  {steps.get('planning', 0):>8.0f}  {steps.get('installing', 0):>10.0f}"
            f"  {steps.get('in force after', 0):>18.0f}  {swap['error']}"
        )
    for step in ("planning", "installing", "in force after"):
        values = sorted(swap["steps_ms"][step] for swap in swaps if step in swap["steps_ms"])
        print(f"{step}: median {statistics.median(values):.0f} ms, max {values[-1]:.0f} ms")


def _judge(out: Path, code: int, swaps: list[dict]) -> int:
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    events = [json.loads(line) for line in (out / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    rounds = [event for event in events if event["event"] == "round"]
    done = [report for event in rounds for report in event["done"].values()]
    twice = sum(report["duplicates"] + report["overlaps"] for report in done)
    epochs = {epoch["epoch"]: epoch["policy"] for epoch in summary["epochs"]}
    alike = [
        len({report["digest"] for report in event["applied"].values()}) == 1
        for event in rounds
        if epochs[event["epoch"]] == "all-to-all"
    ]
    late = [swap for swap in swaps if swap["first_round"] is None or swap["first_round"] - swap["asked_in_round"] > 2]
    print(
        f"{len(rounds)} rounds, {len(swaps)} swaps: lost {summary['contributions']['lost']} of "
        f"{summary['contributions']['sent']}, duplicates {twice}, "
        f"exact {summary['exact']}, digests equal {summary['digests_equal']}, alike after {sum(alike)} of {len(alike)} "
        f"all-to-all rounds; {len(late)} swaps took more than two rounds; exit {code}"
    )
    for warning in summary["warnings"]:
        print(f"warning: {warning}")
    return 1 if late or code or not all(alike) else 0


if __name__ == "__main__":
    raise SystemExit(main())
