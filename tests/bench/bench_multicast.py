"""How long the multicast planes take: until all trees are ready, to follow a failed link, to change epochs. As root:

python tests/bench/bench_multicast.py [ready] [failure] [swallowing] [epochs]
"""

import io
import json
import os
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from rich.console import Console  # noqa: E402

from testbed.run.experiment import Watchers, run_experiment  # noqa: E402
from testbed.run.settings import PolicyChange, RunSettings  # noqa: E402
from tests.netns.multicast.bare_network import bare_network  # noqa: E402
from tests.netns.multicast.test_failures import INTO_ROUND_S, LinkSwitch, Swallowing  # noqa: E402

Document = dict[str, Any]

PLANES = ("direct", "pim")
DIRECT: Document = {"multicast": "direct"}
PIM: Document = {"multicast": "pim"}
OSPF: Document = {"multicast": "pim", "igp": "ospf"}
OSPF_ALONE: Document = {"multicast": "pim", "igp": "ospf-no-bfd"}
REPEATS = 5
_RUNS = tempfile.TemporaryDirectory()  # goes when the program ends


def ready() -> None:
    """From the first process or socket to every router's entries as planned: 9 trees, 72 joins."""
    for plane in PLANES:
        totals_ms: list[float] = []
        steps: dict[str, list[float]] = {}
        for _ in range(REPEATS):
            with tempfile.TemporaryDirectory() as directory, bare_network(plane, Path(directory)) as bare:
                receivers = bare.open_receivers()
                bare.bring_up(bare.trees, receivers)
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
    """nyc-lon down 0.25 s into a round of all-to-all, and up again three rounds later."""
    for name, settings in (("direct", DIRECT), ("pim", PIM), ("pim with OSPF", OSPF)):
        switch = LinkSwitch([(1, [("nyc", "lon")]), (4, [])])
        summary, _ = _run(Watchers(during=switch), rounds=8, **settings)
        switch.finish()
        down, up = summary["link_failures"]
        print(
            f"failure, {name}: {down['moved_trees']} trees moved in {down['reaction_ms']:.1f} ms, "
            f"back in {up['reaction_ms']:.1f} ms; {_outages(summary, 1, 4)}; on its return {_outages(summary, 4, 8)}"
        )


def swallowing() -> None:
    """nyc-lon loses everything and stays up, from 0.25 s into a round on; whole again seven rounds later."""
    for name, settings in (("OSPF and BFD", OSPF), ("OSPF alone", OSPF_ALONE)):
        switch = Swallowing([(1, 1.0), (8, 0.0)], [])
        summary, events = _run(Watchers(during=switch), rounds=11, **settings)
        switch.finish()
        rounds = [event for event in events if event["event"] == "round"]
        hurt = [
            event["round"] + 1
            for event in rounds
            if any(report["delivered"] < report["expected"] for report in event["done"].values())
        ]
        began_ns = rounds[1]["start_ns"] + INTO_ROUND_S * 1e9
        seconds = ", ".join(
            f"{router} {(at_ns - began_ns) / 1e9:.2f} s" for router, at_ns in _given_up(summary).items()
        )
        print(f"swallowing, {name}: given up by {seconds}; {_outages(summary, 1, 8)}; rounds with losses: {hurt}")


def _outages(summary: Document, first: int, end: int) -> str:
    lasted_ms = sorted(outage["outage_ms"] for outage in summary["outages"] if first <= outage["round"] < end)
    if not lasted_ms:
        return "no stream was away"
    median_ms = statistics.median(lasted_ms)
    return (
        f"{len(lasted_ms)} streams were away for {lasted_ms[0]:.0f} to {lasted_ms[-1]:.0f} ms (median {median_ms:.0f})"
    )


def _given_up(summary: Document) -> dict[str, int]:
    """When each of the two routers first gave up the other, by its log, in ns of the monotonic clock."""
    run_dir = Path(summary["run_dir"])
    clock = json.loads((run_dir / "manifest.json").read_text(encoding="utf-8"))["clock"]
    given_up = {}
    for router in ("nyc", "lon"):
        for line in (run_dir / "frr" / router / "ospfd.log").read_text(encoding="utf-8").splitlines():
            if "Full -> Deleted" in line:
                at = datetime.strptime(line[:26], "%Y/%m/%d %H:%M:%S.%f").astimezone()
                given_up[router] = round(at.timestamp() * 1e9) - clock["wall_minus_monotonic_ns"]
                break
    return given_up


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


def _run(watchers: Watchers, **settings: Any) -> tuple[Document, list[Document]]:
    out = Path(_RUNS.name) / str(time.monotonic_ns())
    summary = run_experiment(
        RunSettings(workload="synthetic", out=out, **settings), Console(file=io.StringIO()), watchers
    )
    lines = (out / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return summary, [json.loads(line) for line in lines]


if __name__ == "__main__":
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Linux {os.uname().release}")
    benches = {"ready": ready, "failure": failure, "swallowing": swallowing, "epochs": epochs}
    for name in sys.argv[1:] or benches:
        benches[name]()
