"""How long the multicast planes take: until all trees are ready, to follow a failed link, to change epochs. As root:

python tests/bench/bench_multicast.py [ready] [failure] [epochs]
"""

import io
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from rich.console import Console  # noqa: E402

from testbed.run.experiment import Watchers, run_experiment  # noqa: E402
from testbed.run.settings import PolicyChange, RunSettings  # noqa: E402
from tests.netns.multicast.bare_network import CONFIRM_S, bare_network  # noqa: E402
from tests.netns.multicast.test_failures import LinkSwitch  # noqa: E402

PLANES = ("direct", "pim")
REPEATS = 5


def ready() -> None:
    """From the first process or socket to every router's entries as planned: 9 trees, 72 joins."""
    for plane in PLANES:
        totals_ms, steps = [], {}
        for _ in range(REPEATS):
            with tempfile.TemporaryDirectory() as directory, bare_network(plane, Path(directory)) as bare:
                bare.plane.install(bare.trees)
                receivers = bare.join_all(bare.trees)
                bare.plane.confirm(bare.trees, CONFIRM_S)
                totals_ms.append((time.monotonic() - bare.began) * 1e3)
                for step, milliseconds in bare.plane.timings_ms.items():
                    steps.setdefault(step, []).append(milliseconds)
                for receiver in receivers.values():
                    receiver.close()
        parts = ", ".join(f"{step} {statistics.median(each):.0f}" for step, each in steps.items())
        print(
            f"ready, {plane}: {min(totals_ms):.0f} to {max(totals_ms):.0f} ms over {REPEATS} starts (medians: {parts})"
        )


def failure() -> None:
    """nyc-lon down 0.25 s into a round of all-to-all, and up again two rounds later."""
    for plane in PLANES:
        switch = LinkSwitch([(1, [("nyc", "lon")]), (3, [])])
        summary, _ = _run(Watchers(during=switch), multicast=plane, rounds=6)
        switch.finish()
        outages_ms = sorted(outage["outage_ms"] for outage in summary["outages"] if outage["round"] == 1)
        later = [outage for outage in summary["outages"] if outage["round"] >= 3]
        reaction = summary["link_failures"][0]
        print(
            f"failure, {plane}: {reaction['moved_trees']} trees moved in {reaction['reaction_ms']:.1f} ms; "
            f"{len(outages_ms)} streams were away for {outages_ms[0]:.0f} to {outages_ms[-1]:.0f} ms "
            f"(median {statistics.median(outages_ms):.0f}); {len(later)} after the link came back"
        )


def epochs() -> None:
    """From all-to-all to triangles, to pairs, while rounds go on."""
    for plane in PLANES:
        changes = (PolicyChange("triangles", round=1), PolicyChange("pairs", round=4))
        summary, events = _run(Watchers(), multicast=plane, rounds=7, policy_schedule=changes)
        for event in events:
            if event["event"] == "multicast_ready" and event["epoch"]:
                steps = ", ".join(f"{step} {milliseconds:.0f}" for step, milliseconds in event["steps_ms"].items())
                print(f"epoch {event['epoch']}, {plane}: installed in {event['installed_ms']:.0f} ms ({steps})")
        print(f"epochs, {plane}: {summary['contributions']['lost']} contributions lost")


def _run(watchers: Watchers, **settings: object) -> tuple[dict, list[dict]]:
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run"
        wanted = RunSettings(workload="synthetic", out=out, **settings)
        summary = run_experiment(wanted, Console(file=io.StringIO()), watchers)
        lines = (out / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return summary, [json.loads(line) for line in lines]


if __name__ == "__main__":
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Linux {os.uname().release}")
    for name in sys.argv[1:] or ("ready", "failure", "epochs"):
        {"ready": ready, "failure": failure, "epochs": epochs}[name]()
