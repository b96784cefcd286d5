"""How well whole runs keep to their plans: the five reference plans, and larger and larger rate scales.

    sudo /opt/testbed/venv/bin/python tests/bench/bench_run.py plans [--rounds 20]
    sudo /opt/testbed/venv/bin/python tests/bench/bench_run.py scales --scales 0.001,0.002,0.005,0.01 [--rounds 10]

Every run is a `testbed run` of its own with `synthetic` weights. Beside each figure stands what the machine did: its
load before, and how many rounds it did not keep up with. On a busy machine run it again.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PLANS = (("all-to-all", 32.0), ("triangles", 0.0), ("triangles", 32.0), ("pairs", 0.0), ("regional", 0.0))
MEDIAN_WITHIN, P99_WITHIN = 0.03, 0.10
SCALE_WITHIN = 0.05


def run(directory: Path, *options: str) -> tuple[int, dict[str, Any] | None, str]:
    command = [sys.executable, "-P", "-m", "testbed", "run", "--json", "--workload", "synthetic"]
    done = subprocess.run(
        [*command, "--out", str(directory), *options], capture_output=True, text=True, timeout=900, check=False
    )
    lines = done.stderr.strip().splitlines()
    return done.returncode, json.loads(done.stdout) if done.stdout else None, lines[-1] if lines else ""


def trusted_ratios(run_dir: Path) -> list[float]:
    """Ratios of the rounds that the machine kept up with, ascending."""
    with (run_dir / "rounds.csv").open(encoding="utf-8") as file:
        return sorted(float(row["ratio"]) for row in csv.DictReader(file) if row["trustworthy"] == "True")


def report(label: str, outcome: tuple[int, dict[str, Any] | None, str], load: float, within: float) -> None:
    code, summary, last_line = outcome
    if summary is None:
        print(f"{label:34} exit {code}: {last_line}", flush=True)
        return
    ratio, lateness = summary["measured"]["round_time_ratio"], summary["send_lateness_us"]
    kept = abs(ratio["median"] - 1) <= within
    print(
        f"{label:34} ratio median {ratio['median']:.4f}, p99 {ratio['p99']:.4f}, max {ratio['max']:.4f}; "
        f"{'within' if kept else 'NOT within'} {within:.0%}; lost {summary['contributions']['lost']}, "
        f"exact {summary['exact']}; untrusted {len(summary['untrusted_rounds'])} of {summary['rounds']}; "
        f"send lateness p99 {lateness['p99']:.0f} us; load {load:.1f}; exit {code}",
        flush=True,
    )
    ratios = trusted_ratios(Path(summary["run_dir"]))
    if ratios:
        print(f"{'':34}   the {len(ratios)} trusted rounds: ratio {ratios[0]:.4f} to {ratios[-1]:.4f}")
    for untrusted in summary["untrusted_rounds"][:2]:
        print(f"{'':34}   round {untrusted['round'] + 1}: {'; '.join(untrusted['reasons'])}")


def histogram(summaries: list[dict[str, Any]]) -> None:
    frames: dict[int, int] = {}
    for summary in summaries:
        for bound_us, count in summary["send_lateness_us"]["histogram"]:
            frames[bound_us] = frames.get(bound_us, 0) + count
    total, passed = sum(frames.values()), 0
    print(f"send lateness of {total} frames, all runs together")
    for bound_us, count in sorted(frames.items()):
        passed += count
        print(f"  <= {bound_us:>8} us  {count:>9}  {passed / total:8.3%}  {'#' * round(50 * count / total)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("plans", "scales"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--scales", default="0.002,0.005,0.01")
    parser.add_argument("--repeat", type=int, default=1)
    arguments = parser.parse_args()
    summaries = []
    with tempfile.TemporaryDirectory() as directory:
        for repetition in range(arguments.repeat):
            if arguments.what == "plans":
                cases: list[tuple[str, tuple[str, ...], float]] = [
                    (f"{policy} {memory:g} GB", ("--policy", policy, "--memory-gb", str(memory)), MEDIAN_WITHIN)
                    for policy, memory in PLANS
                ]
            else:
                cases = [
                    (f"all-to-all at rate scale {scale}", ("--rate-scale", scale), SCALE_WITHIN)
                    for scale in arguments.scales.split(",")
                ]
            for number, (label, options, within) in enumerate(cases):
                load = os.getloadavg()[0]
                run_dir = Path(directory) / f"{repetition}-{number}"
                outcome = run(run_dir, *options, "--rounds", str(arguments.rounds))
                report(label, outcome, load, within)
                if outcome[1] is not None:
                    summaries.append(outcome[1])
    if summaries:
        histogram(summaries)
    if arguments.what == "plans":
        print(f"aim: median within {MEDIAN_WITHIN:.0%} of 1, p99 within {P99_WITHIN:.0%}")


if __name__ == "__main__":
    main()
