"""What a run says while it goes on: a line for people, an event for programs."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from scheduler.plan import plan_to_json
from testbed.multicast.counters import RouterDrops
from testbed.multicast.interface import RunningPlane
from testbed.run.epochs import Readiness
from testbed.run.failures import Reaction
from testbed.run.preparing import Prepared
from testbed.run.program import Epoch
from testbed.run.rounds import RoundRecord
from testbed.run.rundir import RunDirectory
from testbed.run.strain import Strain, strain_to_json
from testbed.run.summary import Outcome
from testbed.run.swaps import Swap


def report_readiness(
    plane: RunningPlane, epoch: Epoch, readiness: Readiness, run_dir: RunDirectory, console: Console
) -> None:
    """Say how long it took from the first process or socket of multicast to proven trees."""
    steps_ms = {**plane.timings_ms, **readiness.steps_ms} if epoch.number == 0 else readiness.steps_ms
    installed_ms = sum(steps_ms.values()) - steps_ms["probes"]
    worst = max(readiness.paths, key=lambda path: abs(path.measured_ms - path.planned_ms))
    steps = ", ".join(f"{step} {milliseconds:.0f} ms" for step, milliseconds in steps_ms.items())
    name = "multicast" if epoch.number == 0 else f"epoch {epoch.number} ({epoch.plan.policy})"
    console.print(
        f"{name}: {len(epoch.distinct_trees())} trees in {installed_ms / 1e3:.2f} s ({steps}); "
        f"{len(readiness.paths)} paths proven, worst delay error {abs(worst.measured_ms - worst.planned_ms):.2f} ms"
    )
    run_dir.event(
        "multicast_ready",
        epoch=epoch.number,
        plan=plan_to_json(epoch.plan),
        installed_ms=installed_ms,
        steps_ms=steps_ms,
        paths=[vars(path) for path in readiness.paths],
    )


def report_reaction(reaction: Reaction, run_dir: RunDirectory, console: Console) -> None:
    """Say what was done about links that failed or came back."""
    links = f"{', '.join(reaction.down)} down" if reaction.down else "all links up"
    text = f"{links}: {reaction.moved_trees} trees moved in {reaction.reaction_ms:.1f} ms"
    if reaction.cut_off:
        text += f"; {', '.join(reaction.cut_off)} cannot be reached, rounds will be partial"
    console.print(text)
    run_dir.event("links_changed", **asdict(reaction))


def report_swap(swap: Swap, run_dir: RunDirectory, console: Console) -> None:
    """Say that a swap is over: in force, or given up and why."""
    what = f"swap {swap.number + 1} to {swap.policy} ({swap.cause})"
    if swap.state == "in force" and swap.first_round is not None:
        steps = ", ".join(f"{step} {milliseconds:.0f} ms" for step, milliseconds in swap.steps_ms.items())
        console.print(f"{what}: in force from round {swap.first_round + 1} on ({steps})")
    else:
        console.print(f"{what}: given up: {swap.error}")
    run_dir.event("policy_swap", **asdict(swap))


def report_round(
    record: RoundRecord, strain: Strain, prepared: Prepared, run_dir: RunDirectory, console: Console
) -> None:
    """Say how a round was."""
    scale, rounds = prepared.settings.scale, prepared.settings.rounds
    expected, delivered, repaired = (record.total(name) for name in ("expected", "delivered", "repaired"))
    repairs = f" ({repaired} repaired)" if repaired else ""
    right = "exact" if prepared.settings.number_format != "f32" else "right but for rounding"
    verdict = f"sums {right}" if record.exact else "SUMS WRONG"
    verdict += ", digests equal" if record.digests_equal else ", DIGESTS DIFFER"
    if record.outages:
        worst = max(record.outages, key=lambda outage: outage.duration_ns)
        verdict += (
            f"; {len(record.outages)} streams had outages, the longest {worst.source} to {worst.receiver}: "
            f"{scale.undilated_ms(worst.duration_ns):.0f} ms"
        )
    if strain.reasons:
        first, *others = strain.reasons
        more = f" (and {len(others)} more, in rounds.csv)" if others else ""
        verdict += f"; NOT TRUSTWORTHY: {first}{more}"
    console.print(
        f"round {record.number + 1:>{len(str(rounds))}}/{rounds}: "
        f"{scale.undilated_ms(record.completion_ns):.1f} ms of {scale.undilated_ms(record.planned_ns):.1f} "
        f"+ {scale.undilated_ms(record.packetisation_ns):.1f}, ratio {record.ratio:.3f}, "
        f"{delivered} of {expected} contributions{repairs}, {verdict}"
    )
    for restart in record.restarts:
        console.print(f"{restart.process} ended ({restart.how}); started again within {restart.outage_s:.2f} s")
        run_dir.event("restart", **vars(restart))
    run_dir.event(
        "round",
        round=record.number,
        epoch=record.epoch,
        phase=record.phase,
        start_ns=record.start_ns,
        completion_ns=record.completion_ns,
        planned_ns=record.planned_ns,
        packetisation_ns=record.packetisation_ns,
        training_began_ns=record.training_began_ns,
        ended_ns=record.ended_ns,
        lan_exchange_ns=record.lan_exchange_ns,
        mixing=record.mixing.tolist(),
        restarts=[asdict(restart) for restart in record.restarts],
        disturbed=record.disturbed,
        exact=record.exact,
        digests_equal=record.digests_equal,
        done=record.done,
        retired=record.retired_without_occupancy(),
        trained=record.trained,
        prepared=record.ready,
        applied=record.applied,
        outages=[asdict(outage) for outage in record.outages],
        strain=strain_to_json(strain),
    )


def round_to_json(record: RoundRecord) -> dict[str, Any]:
    """A round in short, for those who look on."""
    return {
        "round": record.number,
        "epoch": record.epoch,
        "ratio": record.ratio,
        "expected": record.total("expected"),
        "delivered": record.total("delivered"),
        "exact": record.exact,
        "digests_equal": record.digests_equal,
    }


def report_end(outcome: Outcome, drops: Mapping[str, RouterDrops], run_dir: RunDirectory) -> None:
    """Record what is known at the end only; with it, the events hold all that the summary is made from."""
    run_dir.event(
        "finished",
        rounds=len(outcome.records),
        drops={router: asdict(each) for router, each in drops.items()},
        epochs=[epoch.number for epoch in outcome.epochs],
        loads=[asdict(load) for load in outcome.loads],
        saving=dict(outcome.saving),
        evaluations=dict(outcome.evaluations),
        memory=asdict(outcome.memory),
        swaps=[asdict(swap) for swap in outcome.swaps],
        closing=asdict(outcome.closing),
        warnings=list(outcome.warnings),
    )
