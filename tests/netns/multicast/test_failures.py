"""A core link goes down in the middle of a round, and comes back."""

import io
import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from testbed.multicast.frr import missing_package
from testbed.run.experiment import Running, Watchers, run_experiment
from testbed.run.settings import PolicyChange, RunSettings
from testbed.scale import Scale
from tests.netns.testbed.command import leftovers

NEEDS_FRR = pytest.mark.skipif(missing_package() is not None, reason=str(missing_package()))
ATLANTIC = {"nyc", "chi", "lax"}, {"lon", "fra", "ams"}
INTO_ROUND_S = 0.25
MOST_LATE_S = 0.1
PATIENCE_S = 60


class LinkSwitch:
    """Takes links down and up in given rounds, or in later ones if the machine is busy, from a thread of its own."""

    def __init__(self, changes: list[tuple[int, list[tuple[str, str]]]]) -> None:
        """`changes`: (round, links that are then down)."""
        self._changes = changes
        self.rounds: list[int] = []  # in which it was done
        self.error: BaseException | None = None

    def __call__(self, running: Running) -> None:
        self._thread = threading.Thread(target=self._act, args=(running,))
        self._thread.start()

    def _act(self, running: Running) -> None:
        try:
            down: set[tuple[str, str]] = set()
            for round_number, wanted in self._changes:
                self.rounds.append(self._wait_until_in_round(running, round_number))
                # One after the other, as commands and scenarios do it: the run reacts to each.
                for a, b in sorted(down ^ set(wanted)):
                    running.network.links.set_up(a, b, (a, b) not in wanted)
                    down ^= {(a, b)}
                    running.failures.links_are_down([frozenset(pair) for pair in down])
        except BaseException as error:
            self.error = error

    def _wait_until_in_round(self, running: Running, round_number: int) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            while running.progress.round < round_number:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            round_number = running.progress.round
            due = running.progress.start_ns / 1e9 + INTO_ROUND_S
            time.sleep(max(due - time.monotonic(), 0))
            if time.monotonic() - due < MOST_LATE_S:
                return round_number
            round_number += 1

    def finish(self) -> None:
        self._thread.join(PATIENCE_S)
        assert self.error is None


def run_with(switch: LinkSwitch, run_dir: Path, **settings: Any) -> dict[str, Any]:
    console = Console(file=io.StringIO())
    summary = run_experiment(
        RunSettings(workload="synthetic", out=run_dir, **settings), console, Watchers(during=switch)
    )
    switch.finish()
    return summary


def need_failure_under_way(summary: dict[str, Any], struck: dict[str, Any], before: int) -> None:
    """Skip the test if this machine was too busy to take the link down while a round's streams were under way.

    `struck`: the round; it must come before that number.
    """
    into_round_ms = (summary["link_failures"][0]["at_ns"] - struck["start_ns"]) / 1e6
    if struck["round"] >= before or not 0 < into_round_ms < 0.8 * summary["predicted"]["round_time_ms"]:
        pytest.skip(f"the machine was too busy: the link went down {into_round_ms:.0f} ms into round {struck['round']}")


def events_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "events.jsonl").read_text(encoding="utf-8").splitlines()]


def rounds_of(run_dir: Path) -> list[dict[str, Any]]:
    return [event for event in events_of(run_dir) if event["event"] == "round"]


# Never less than what is in flight on the link (40 ms); how much more is up to the plane, and to this machine: dilated,
# since one that is busy takes longer than these bounds to come to it.
@pytest.mark.parametrize(("plane", "longest_ms"), [("direct", 150), pytest.param("pim", 450, marks=NEEDS_FRR)])
def test_traffic_returns_and_later_rounds_are_whole(plane: str, longest_ms: float, tmp_path: Path) -> None:
    before = leftovers()
    switch = LinkSwitch([(1, [("nyc", "lon")]), (7, [])])
    # A policy that was to follow anyway is planned again as well, or it would send over the link that is down.
    follows = (PolicyChange("triangles", round=5),)
    summary = run_with(
        switch, tmp_path / "run", multicast=plane, rounds=12, policy_schedule=follows, scale=Scale(time_dilation=3.0)
    )
    rounds = rounds_of(tmp_path / "run")
    struck = switch.rounds[0]
    need_failure_under_way(summary, rounds[struck], before=4)
    whole = [all(report["delivered"] == report["expected"] for report in event["done"].values()) for event in rounds]
    assert all(whole[:struck])
    assert not whole[struck]
    assert len(whole) == 12
    assert all(whole[struck + 2 :])  # the link comes back in round 7 or later, and costs nothing
    assert all(event["digests_equal"] for event in rounds[struck + 2 :])
    assert summary["exact"] is True
    # Planned again for what was left, then as scheduled, then for all links again.
    policies = [epoch["policy"] for epoch in summary["epochs"]]
    assert list(dict.fromkeys(policies)) == ["all-to-all", "triangles"]
    assert policies[-2:] == ["triangles", "triangles"]
    assert [failure["down"] for failure in summary["link_failures"]] == [("lon-nyc",), ()]

    outages = [outage for outage in summary["outages"] if outage["round"] == struck]
    hurt = {(outage["source"], outage["receiver"]) for outage in outages}
    across = {(a, b) for left, right in (ATLANTIC, ATLANTIC[::-1]) for a in left for b in right}
    assert across <= hurt
    durations_ms = [outage["outage_ms"] for outage in outages]
    assert min(durations_ms) > 0
    assert max(durations_ms) <= longest_ms
    lost = sum(outage["missing_chunks"] for outage in summary["outages"])
    assert lost == summary["contributions"]["lost"] > 0
    assert leftovers() == before


class Swallowing(LinkSwitch):
    """Has a link lose everything, of which nobody is told; then it goes down and comes back as well."""

    def __init__(self, losses: list[tuple[int, float]], changes: list[tuple[int, list[tuple[str, str]]]]) -> None:
        super().__init__(changes)
        self._losses = losses
        self.swallowing: list[int] = []  # the rounds in which losses began and ended

    def _act(self, running: Running) -> None:
        try:
            links = running.network.links
            for round_number, loss in self._losses:
                self.swallowing.append(self._wait_until_in_round(running, round_number))
                for ends in (("nyc", "lon"), ("lon", "nyc")):
                    links.change(*ends, replace(links.directions()[ends], loss=loss))
        except BaseException as error:
            self.error = error
        super()._act(running)


@NEEDS_FRR
def test_ospf_finds_other_ways_and_back(tmp_path: Path) -> None:
    before = leftovers()
    # Lost without a word in round 1, which only BFD finds soon; whole again in 3; down in 5, and up in 7.
    switch = Swallowing([(1, 1.0), (3, 0.0)], [(5, [("nyc", "lon")]), (7, [])])
    # Dilated: BFD would have moved the trees before the next round if a busy machine lost the link as one ends.
    summary = run_with(switch, tmp_path / "run", multicast="pim", igp="ospf", rounds=12, scale=Scale(time_dilation=3.0))
    rounds = rounds_of(tmp_path / "run")
    assert summary["exact"] is True
    # A busy machine may have OSPF or BFD take links for lost that are not: what it cannot do is to change the ends.
    for number in (0, 11):
        assert all(report["delivered"] == report["expected"] for report in rounds[number]["done"].values())
        assert rounds[number]["digests_equal"]
    lost = [sum(report["expected"] - report["delivered"] for report in event["done"].values()) for event in rounds]
    struck = switch.swallowing[0]
    assert lost[struck] > 0  # what was on its way, and what came until the failure was found
    assert any(count == 0 for count in lost[struck + 1 : struck + 3])  # the ways around it work
    outages = [outage for outage in summary["outages"] if outage["round"] == struck]
    assert {("nyc", "lon"), ("lon", "nyc")} <= {(outage["source"], outage["receiver"]) for outage in outages}
    assert [failure["down"] for failure in summary["link_failures"]] == [("lon-nyc",), ()]
    assert all(failure["moved_trees"] for failure in summary["link_failures"])
    assert [epoch["epoch"] for epoch in summary["epochs"]] == [0, 1, 2]
    core = [load for load in summary["links"] if load["routing_bytes"]]
    assert len(core) == 28  # OSPF and BFD are on every core link, and are not taken for streams
    assert all(abs(load["measured_bytes"] - load["planned_bytes"]) <= load["allowed_bytes"] for load in core)
    steps = next(event for event in events_of(tmp_path / "run") if event["event"] == "multicast_ready")["steps_ms"]
    assert "routes of OSPF" in steps
    assert "ip ospf bfd" in (tmp_path / "run" / "frr" / "nyc" / "ospfd.conf").read_text(encoding="utf-8")
    assert leftovers() == before


def test_a_cut_network_gives_partial_rounds_and_says_why(tmp_path: Path) -> None:
    pacific = [("lax", "tyo"), ("lax", "hkg"), ("fra", "sin")]
    switch = LinkSwitch([(1, pacific), (4, [])])
    summary = run_with(switch, tmp_path / "run", multicast="direct", rounds=7)
    asia = {"tyo", "hkg", "sin"}
    assert set(summary["link_failures"][2]["cut_off"]) == asia
    assert any("tyo, hkg, sin cannot be reached: rounds are partial" in warning for warning in summary["warnings"])
    rounds = rounds_of(tmp_path / "run")
    struck = switch.rounds[0]
    need_failure_under_way(summary, rounds[struck], before=4)
    delivered = [sum(report["delivered"] for report in event["done"].values()) for event in rounds]
    expected = [sum(report["expected"] for report in event["done"].values()) for event in rounds]
    assert delivered[0] == expected[0]
    assert delivered[struck] < expected[struck] or delivered[struck + 1] < expected[struck + 1]
    assert delivered[-1] == expected[-1]
    assert rounds[-1]["digests_equal"]
    assert summary["exact"] is True
    away = {(outage["source"], outage["receiver"]) for outage in summary["outages"]}
    others = {"nyc", "chi", "lax", "lon", "fra", "ams"}
    assert {(a, b) for left, right in ((asia, others), (others, asia)) for a in left for b in right} <= away
