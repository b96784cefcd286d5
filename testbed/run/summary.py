"""The results of a run: the document of `run --json`, and the closing table for people."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.table import Table

from testbed.run.accounting import LinkLoad
from testbed.run.failures import Reaction
from testbed.run.mixing import measured_divergence
from testbed.run.program import Epoch
from testbed.run.repairs import Closing, repair_counts
from testbed.run.rounds import RoundRecord
from testbed.run.settings import RunSettings
from testbed.run.startup import MemoryBudget
from testbed.run.strain import Strain, suggestion
from testbed.run.swaps import Swap
from testbed.run.training_summary import training_summary
from testbed.scale import Scale

STRICT_RATIO = 0.05
_VALUE_TROUBLES = {
    "saturated": "did not fit the number format and were cut to its largest",
    "non_finite": "were not numbers or infinite, and were sent as 0",
    "denormal": "were denormal floats and were sent as 0",
}


@dataclass(frozen=True)
class Outcome:
    """Everything that the summary is made from."""

    settings: RunSettings
    epochs: Sequence[Epoch]
    records: Sequence[RoundRecord]
    strains: Sequence[Strain]
    loads: Sequence[LinkLoad]
    saving: Mapping[str, float]
    evaluations: Mapping[str, Mapping[str, Any]]
    memory: MemoryBudget
    links_kind: str
    multicast_plane: str
    reactions: Sequence[Reaction]
    swaps: Sequence[Swap]
    closing: Closing
    run_dir: str
    warnings: Sequence[str]


def summarise(outcome: Outcome) -> dict[str, Any]:
    """The document of `run --json` (keys as in the docs); times undilated, sizes at full scale."""
    records, scale, first = outcome.records, outcome.settings.scale, outcome.epochs[0]
    plan = first.plan
    # The longest completion of each pass; one that was cut short would count its shorter rounds only.
    longest_ms = [scale.undilated_ms(max(record.completion_ns for record in rounds)) for rounds in _passes(outcome)]
    starts_ns = [record.start_ns for record in records]
    periods_ms = [scale.undilated_ms(later - earlier) for earlier, later in pairwise(starts_ns)]
    longest_phase = max(first.phases, key=lambda phase: phase.planned_ns + phase.packetisation_ns)
    spread = measured_divergence(
        [record.mixing for record in records if record.epoch == first.number], len(first.phases)
    )
    expected = sum(record.total("expected") for record in records)
    delivered = sum(record.total("delivered") for record in records)
    repaired = sum(record.total("repaired") for record in records)
    floats = outcome.settings.number_format == "f32"
    # Sums of floats cannot be exact or not: null, unless one is wrong by more than rounding.
    right = all(record.exact for record in records)
    exact = None if floats and right else right
    digests_equal = all(record.digests_equal for record in records)
    warnings = list(outcome.warnings)
    warnings += _troubles(outcome)
    warnings += _failures(outcome)
    untrusted = _untrusted(outcome)
    if untrusted:
        strained = [strain for strain in outcome.strains if not strain.trustworthy]
        warnings.append(
            f"{len(untrusted)} of {len(records)} rounds are not trustworthy, this machine could not keep up; "
            f"the first, round {untrusted[0]['round'] + 1}: {untrusted[0]['reasons'][0]}; "
            f"try {suggestion(strained, scale)}{_stolen(strained)}"
        )
    lost = expected - delivered
    if lost:
        hint = "" if outcome.settings.recovery.fetch else "; --repair source fetches what the WAN has lost"
        warnings.append(f"{lost} contributions were lost{hint}")
    if not right:
        warnings.append("an applied sum differs from the sum of what was sent")
    if floats:
        warnings.append(
            "number format f32: sums depend on the order of arrival, so they are checked within rounding only, and "
            + (
                "members of a clique ended rounds equal by chance"
                if digests_equal
                else "members of a clique end rounds with different parameters"
            )
        )
    elif not digests_equal:
        warnings.append("members of a clique ended a round with different parameters")
    wrong_loads = [load for load in outcome.loads if not load.ok]
    if wrong_loads and not lost:
        worst = max(wrong_loads, key=lambda load: abs(load.measured_bytes - load.planned_bytes))
        warnings.append(
            f"{len(wrong_loads)} link directions did not carry what was planned; the worst, "
            f"{worst.source}>{worst.target}, carried {worst.measured_bytes} bytes of {worst.planned_bytes}"
        )
    return {
        "policy": plan.policy,
        "topology": plan.topology,
        "hosts_per_island": outcome.settings.hosts_per_island,
        "workload": outcome.settings.workload,
        "rate_scale": scale.rate_scale,
        "time_dilation": scale.time_dilation,
        "cliques": [[list(clique) for clique in phase.cliques] for phase in first.phases],
        "rounds": len(records),
        "predicted": {
            "round_time_ms": plan.round_time_ms,
            "packetisation_ms": scale.undilated_ms(longest_phase.packetisation_ns),
            "objective_ms": _finite(plan.objective_ms),
            "mean_divergence_lifetime_rounds": _finite(plan.mean_divergence_lifetime_rounds),
            "survival": list(plan.survival),
        },
        "measured": {
            "round_time_ms": _distribution(longest_ms),
            "round_time_ratio": _distribution([record.ratio for record in records]),
            "period_ms": statistics.median(periods_ms) if periods_ms else None,
            "mean_divergence_lifetime_rounds": spread.mean_lifetime_rounds if spread else None,
            "survival": list(spread.survival) if spread else [],
            "lan_exchange_ms": max((scale.undilated_ms(record.lan_exchange_ns) for record in records), default=0.0),
        },
        "trustworthy": not untrusted,
        "untrusted_rounds": untrusted,
        "exact": exact,
        "digests_equal": digests_equal,
        "contributions": {"sent": expected, "delivered": delivered, "lost": lost, "repaired": repaired},
        "repair": {"wan": outcome.settings.recovery.repair, **repair_counts(outcome.records, outcome.closing)},
        "results": {
            name: sum(record.total(name) for record in records) for name in ("complete", "partial", "bypassed")
        },
        "memory": _memory(outcome),
        "number_format": outcome.settings.number_format,
        "training": training_summary(records, outcome.settings.training, scale),
        "values": {
            name: sum(int(report[name]) for record in records for report in record.ready.values())
            for name in ("saturated", "non_finite", "denormal")
        },
        "edge_restarts": sum(len(record.restarts) for record in records),
        "send_lateness_us": _send_lateness(records),
        "receive_wait_us": _worst(records, "receive_wait_us"),
        "links_kind": outcome.links_kind,
        "multicast_plane": outcome.multicast_plane,
        "aggregation": outcome.settings.aggregation,
        "engine": outcome.settings.engine_in_use,
        "evaluations": {name: dict(values) for name, values in outcome.evaluations.items()},
        "accuracy": {name: values["accuracy"] for name, values in outcome.evaluations.items() if "accuracy" in values},
        "multicast": dict(outcome.saving),
        "epochs": [_epoch(epoch, records, scale) for epoch in outcome.epochs],
        "policy_swaps": [asdict(swap) for swap in outcome.swaps],
        "link_failures": [asdict(reaction) for reaction in outcome.reactions],
        "outages": [
            {
                "round": record.number,
                "source": outage.source,
                "receiver": outage.receiver,
                "missing_chunks": outage.missing,
                "outage_ms": scale.undilated_ms(outage.duration_ns),
            }
            for record in records
            for outage in record.outages
        ],
        "links": [{**asdict(load), "ok": load.ok} for load in outcome.loads],
        "run_dir": outcome.run_dir,
        "warnings": warnings,
    }


def _passes(outcome: Outcome) -> list[Sequence[RoundRecord]]:
    """The rounds, pass by pass and epoch by epoch; those of passes that were cut short only if there are no others."""
    passes: list[Sequence[RoundRecord]] = []
    for epoch in outcome.epochs:
        records = [record for record in outcome.records if record.epoch == epoch.number]
        passes += [records[at : at + len(epoch.phases)] for at in range(0, len(records), len(epoch.phases))]
    lengths = {epoch.number: len(epoch.phases) for epoch in outcome.epochs}
    return [rounds for rounds in passes if len(rounds) == lengths[rounds[0].epoch]] or passes


def _epoch(epoch: Epoch, records: Sequence[RoundRecord], scale: Scale) -> dict[str, Any]:
    """What was planned and measured in one epoch."""
    of_epoch = [record for record in records if record.epoch == epoch.number]
    completions_ms = [scale.undilated_ms(record.completion_ns) for record in of_epoch]
    return {
        "epoch": epoch.number,
        "policy": epoch.plan.policy,
        "rounds": len(of_epoch),
        "first_round": of_epoch[0].number if of_epoch else None,
        "planned_round_time_ms": epoch.plan.round_time_ms,
        "measured_round_time_ms": max(completions_ms) if of_epoch else None,
    }


def _failures(outcome: Outcome) -> list[str]:
    """What links that failed did to the run, and which swaps of the policy failed, in words."""
    told = []
    for reaction in outcome.reactions:
        if reaction.cut_off:
            islands = ", ".join(reaction.cut_off)
            told.append(f"with {', '.join(reaction.down)} down {islands} cannot be reached: rounds are partial")
        if reaction.trouble:
            links = f"{', '.join(reaction.down)} down" if reaction.down else "all links up"
            told.append(f"with {links} there was no new plan: {reaction.trouble}")
    told += [
        f"the swap to {swap.policy} ({swap.cause}) was given up: {swap.error}"
        for swap in outcome.swaps
        if swap.state == "failed"
    ]
    outages_ns = [outage.duration_ns for record in outcome.records for outage in record.outages]
    if outages_ns:
        longest_ms = outcome.settings.scale.undilated_ms(max(outages_ns))
        told.append(f"links failed: {len(outages_ns)} streams had outages, the longest {longest_ms:.0f} ms")
    return told


def passed(summary: Mapping[str, Any], strict: bool) -> bool:
    """Whether the run is within its own checks; with `strict`, the round time as well."""
    on_time = abs(summary["measured"]["round_time_ratio"]["median"] - 1) <= STRICT_RATIO
    floats = summary["number_format"] == "f32"
    sums_right = summary["exact"] is not False and (summary["digests_equal"] or floats)
    counts_right = summary["contributions"]["lost"] == 0 and sums_right
    loads_right = all(load["ok"] for load in summary["links"])
    return bool(counts_right and loads_right and (on_time or not strict))


def _memory(outcome: Outcome) -> dict[str, Any]:
    """Planned and measured peaks, over all and by island; what the edges did for want of slots."""
    memory, scale = outcome.memory, outcome.settings.scale
    planned_gb: dict[str, float] = {}
    if outcome.settings.aggregation == "edge":
        for planned in (planned for epoch in outcome.epochs for planned in epoch.plan.rounds):
            for island, peak in planned.peak_memory_gb.items():
                planned_gb[island] = max(planned_gb.get(island, 0.0), peak)
    high_water: dict[str, int] = {}
    for record in outcome.records:
        for island, report in record.retired.items():
            high_water[island] = max(high_water.get(island, 0), int(report["high_water_slots"]))
    highest = max(high_water.values(), default=0)
    return {
        "planned_peak_gb": max(planned_gb.values(), default=0.0),
        "measured_peak_gb": scale.full_size_gb(highest * memory.slot_bytes),
        "floor_used": max(highest - memory.budget_slots, 0) / memory.floor_slots,
        "collisions": sum(report["collision"] for record in outcome.records for report in record.retired.values()),
        "islands": {
            island: {
                "planned_peak_gb": planned_gb.get(island, 0.0),
                "measured_peak_gb": scale.full_size_gb(slots * memory.slot_bytes),
            }
            for island, slots in sorted(high_water.items())
        },
    }


def _stolen(strained: Sequence[Strain]) -> str:
    """How many of the marked rounds met with a hypervisor that gave processors to others."""
    rounds = sum(strain.stolen_ms > 0 for strain in strained)
    return f"; in {rounds} of them the hypervisor gave processors to others: try a quieter machine" if rounds else ""


def _untrusted(outcome: Outcome) -> list[dict[str, Any]]:
    return [
        {"round": record.number, "reasons": list(strain.reasons)}
        for record, strain in zip(outcome.records, outcome.strains, strict=True)
        if not strain.trustworthy
    ]


def _troubles(outcome: Outcome) -> list[str]:
    """What went wrong at hosts and edges beside losses, in words."""
    records = outcome.records
    retired = [(record.number, island, report) for record in records for island, report in record.retired.items()]
    troubles = [
        f"the engine of edge {island} failed, it passed contributions through: {failure}"
        for island, failure in sorted({(island, report["engine_failure"]) for _, island, report in retired})
        if failure
    ]
    loading = sorted({number for number, _, report in retired if report["engine_loading"]})
    if loading:
        troubles.append(f"engines were loading up to round {loading[-1] + 1}: contributions passed through")
    for record in records:
        troubles += [
            f"{restart.process} ended ({restart.how}) and was started again within {restart.outage_s:.2f} s, in round "
            f"{record.number + 1}"
            for restart in record.restarts
        ]
    collisions = sum(report["collision"] for _, _, report in retired)
    if collisions:
        rounds = len({number for number, _, report in retired if report["collision"]})
        edge = outcome.settings.edge
        what = "old sums gave way" if edge.collision == "evict-old" else "contributions passed unsummed"
        troubles.append(f"edges had too few slots in {rounds} rounds: {collisions} {what} (collisions)")
    values = [report for record in records for report in record.ready.values()]
    for name, text in _VALUE_TROUBLES.items():
        count = sum(int(report[name]) for report in values)
        if count:
            troubles.append(f"{count} values {text}")
    return troubles


def _send_lateness(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """The worst of all data planes' figures, round by round, and the histogram of all frames."""
    frames: dict[int, int] = {}
    for report in (report for record in records for report in record.done.values()):
        for bound_us, count in report["send_lateness_histogram"]:
            frames[bound_us] = frames.get(bound_us, 0) + count
    histogram = [list(bucket) for bucket in sorted(frames.items())]
    return {**_worst(records, "send_lateness_us"), "histogram": histogram}


def _worst(records: Sequence[RoundRecord], key: str) -> dict[str, float]:
    """The worst of all data planes' figures under a key, round by round."""
    done = [report[key] for record in records for report in record.done.values()]
    return {name: max(figures[name] for figures in done) for name in ("median", "p99", "max")}


def _shares(histogram: Sequence[Sequence[int]]) -> str:
    """How many of all frames were at most so late, until that is nearly all."""
    total = sum(count for _, count in histogram)
    shares, passed = [], 0
    for bound_us, count in histogram:
        passed += count
        if passed >= 0.1 * total:
            shares.append(f"{passed / total:.1%} ≤ {bound_us}")
        if passed >= 0.999 * total:
            break
    return ", ".join(shares[-4:])


def _distribution(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
    return {"median": statistics.median(ordered), "p99": p99, "max": ordered[-1]}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def print_table(console: Console, summary: Mapping[str, Any]) -> None:
    """The closing table."""
    predicted, measured = summary["predicted"], summary["measured"]
    table = Table(
        title=f"{summary['policy']} on {summary['topology']}, {summary['rounds']} rounds", title_justify="left"
    )
    table.add_column("", no_wrap=True)
    table.add_column("predicted", justify="right")
    table.add_column("measured", justify="right")
    times, ratio = measured["round_time_ms"], measured["round_time_ratio"]
    table.add_row(
        "round time T, ms", f"{predicted['round_time_ms']:.1f}", f"{times['median']:.1f} (max {times['max']:.1f})"
    )
    table.add_row("  of it packetisation, ms", f"+ {predicted['packetisation_ms']:.1f}", "")
    table.add_row("round time ratio", "1", f"{ratio['median']:.3f} (p99 {ratio['p99']:.3f})")
    table.add_row("period, ms", f"{predicted['round_time_ms']:.1f}", _number(measured["period_ms"]))
    table.add_row(
        "divergence lifetime A, rounds",
        _number(predicted["mean_divergence_lifetime_rounds"], 3),
        _number(measured["mean_divergence_lifetime_rounds"], 3),
    )
    training = summary["training"]
    if training["busy_fraction"] is not None:
        table.add_row("share of the time that islands trained", "", f"{training['busy_fraction']:.0%}")
    memory = summary["memory"]
    table.add_row(
        "aggregator memory, GB",
        f"{memory['planned_peak_gb']:.3f}",
        f"{memory['measured_peak_gb']:.3f} (floor used {memory['floor_used']:.0%})",
    )
    contributions, results = summary["contributions"], summary["results"]
    table.add_row("contributions delivered", str(contributions["sent"]), str(contributions["delivered"]))
    table.add_row("  lost", "0", str(contributions["lost"]))
    table.add_row("  repaired", "0", str(contributions["repaired"]))
    table.add_row("results complete / partial / bypassed", "", " / ".join(str(count) for count in results.values()))
    exact = summary["exact"]
    table.add_row("sums exact", "yes", "no: f32, within rounding" if exact is None else _yes(exact))
    equal = "no: f32" if exact is None and not summary["digests_equal"] else _yes(summary["digests_equal"])
    table.add_row("digests equal in each clique", "yes", equal)
    if summary["hosts_per_island"] > 1:
        table.add_row("exchange between an island's hosts, ms", "", f"max {measured['lan_exchange_ms']:.1f}")
    trusted = summary["rounds"] - len(summary["untrusted_rounds"])
    table.add_row("rounds that this machine kept up with", str(summary["rounds"]), str(trusted))
    lateness = summary["send_lateness_us"]
    table.add_row("send lateness, µs", "0", f"p99 {lateness['p99']:.0f}, max {lateness['max']:.0f}")
    table.add_row("  of all frames, µs", "", _shares(lateness["histogram"]))
    waits = summary["receive_wait_us"]
    table.add_row("results' wait at their hosts, µs", "0", f"p99 {waits['p99']:.0f}, max {waits['max']:.0f}")
    carried = [load for load in summary["links"] if load["planned_bytes"]]
    error = max((abs(load["measured_bytes"] / load["planned_bytes"] - 1) for load in carried), default=0.0)
    table.add_row("bytes on links, worst error", "0 %", f"{error:.2%}")
    for island, accuracy in summary["accuracy"].items():
        table.add_row(f"accuracy of {island}", "", f"{accuracy:.1%}")
    console.print(table)
    console.print(
        f"links {summary['links_kind']}, multicast {summary['multicast_plane']}, aggregation {summary['aggregation']}, "
        f"engine {summary['engine']}; results in {summary['run_dir']}",
        highlight=False,
        soft_wrap=True,
    )
    for warning in summary["warnings"]:
        console.print(f"warning: {warning}", highlight=False, soft_wrap=True)


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _yes(value: bool) -> str:
    return "yes" if value else "NO"
