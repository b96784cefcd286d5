"""One experiment from its settings to its summary: plan, build, prove, run, measure, clean up."""

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agents.workloads import load_workload
from agents.workloads.interface import Setting, Workload, value_count
from aggregator.engine import EngineError
from aggregator.engines import make_engine
from scheduler.plan import Plan, plan_to_json
from scheduler.planner import plan as make_plan
from scheduler.topology import Topology
from testbed.errors import TestbedError
from testbed.links.interface import DirectionCounters, Link, LinkKind
from testbed.links.kinds import choose_link_kind
from testbed.multicast.interface import MulticastPlane, RunningPlane, Site
from testbed.multicast.planes import check_plane_name, choose_plane
from testbed.network import naming
from testbed.network.emulated import build_network, emulated_links
from testbed.policies import find_policy
from testbed.run.accounting import (
    ROUTING_BYTES_PER_S,
    UNPLANNED_BYTES,
    Direction,
    LinkLoad,
    link_loads,
    planned_streams,
    saving,
)
from testbed.run.epochs import Readiness, introduce_epoch
from testbed.run.frames import Framing, frame_payload
from testbed.run.machine import check_machine
from testbed.run.processes import Fleet
from testbed.run.program import Epoch, make_epoch
from testbed.run.rounds import TRAINING_TIMEOUT_S, RoundRecord, run_rounds
from testbed.run.rundir import RunDirectory, check_run_directory, make_run_directory
from testbed.run.settings import RunSettings
from testbed.run.startup import StartUp, memory_budget, start_processes
from testbed.run.state import RunState, mark_run, new_run, release_run
from testbed.run.summary import Outcome, summarise
from testbed.topology.files import topology_to_json
from testbed.topology.load import load_topology


@dataclass(frozen=True)
class Prepared:
    """Everything decided before the machine is touched."""

    settings: RunSettings
    topology: Topology
    plan: Plan
    framing: Framing
    epoch: Epoch
    workload: Workload
    links: tuple[Link, ...]
    link_kind: LinkKind
    plane: MulticastPlane


def run_experiment(settings: RunSettings, console: Console) -> dict[str, Any]:
    """Run one experiment and return its summary; progress goes to `console`.

    Raises TestbedError for bad input or an unfit machine, before anything is changed; RunFailed when the run cannot go
    on. Whatever happens, nothing of the run is left but its directory.
    """
    prepared = prepare(settings)
    console.print(
        f"plan: {settings.policy} on {prepared.topology.name}, {settings.memory_gb:g} GB: "
        f"T = {prepared.plan.round_time_ms:.1f} ms; links {prepared.link_kind.name}, multicast {prepared.plane.name}"
    )
    run_dir = make_run_directory(settings.out, settings.policy)
    with _marked_run(run_dir) as state:
        run_dir.manifest(settings, state.run_id, topology_to_json(prepared.topology), plan_to_json(prepared.plan))
        run_dir.event("planned", policy=settings.policy, round_time_ms=prepared.plan.round_time_ms)
        summary = _run(prepared, state, run_dir, console)
        run_dir.summary(summary)
        return summary


def prepare(settings: RunSettings) -> Prepared:
    """Check the settings against everything there is. Raises TestbedError or SchedulerError; changes nothing."""
    topology = load_topology(settings.topology)
    naming.check_names(topology)
    try:
        workload = load_workload(settings.workload)
    except ValueError as error:
        raise TestbedError(f"--workload: {error}") from error
    try:
        make_engine(settings.engine)
    except EngineError as error:
        raise TestbedError(f"--engine: {error}") from error
    check_run_directory(settings.out)
    check_plane_name(settings.multicast)
    plan = plan_policy(settings, topology, settings.policy)
    framing = frame_payload(settings.scale.size_bytes(settings.payload_gb))
    needed = value_count(workload.tensors(Setting(Path(), settings.seed, len(topology.islands), framing.values)))
    if needed > framing.values:
        raise TestbedError(
            f"workload {settings.workload} has {needed} values, but a payload of {settings.payload_gb:g} GB at rate "
            f"scale {settings.scale.rate_scale:g} carries {framing.values}; raise --payload-gb or --rate-scale"
        )
    hosts, copies = settings.hosts_per_island, settings.copies
    naming.check_hosts(hosts)
    epoch = make_epoch(0, plan, topology, framing, settings.scale, hosts, copies)
    links = emulated_links(topology, settings.scale, settings.seed, hosts)
    check_machine(len(naming.node_names(topology, hosts)))
    link_kind = choose_link_kind(settings.links, links)
    plane = choose_plane(settings.multicast, topology, epoch.distinct_trees())
    return Prepared(settings, topology, plan, framing, epoch, workload, links, link_kind, plane)


def plan_policy(settings: RunSettings, topology: Topology, policy: str) -> Plan:
    """The plan of a policy as the run's settings want it. Raises TestbedError if it cannot run, or SchedulerError."""
    plan = make_plan(
        topology,
        find_policy(policy),
        memory_gb=settings.memory_gb,
        payload_gb=settings.payload_gb,
        multicast="unicast" if settings.copies else "direct",
        aggregation=settings.aggregation,
        trees=settings.trees,
        seed=settings.seed,
    )
    if not plan.feasible:
        raise TestbedError(f"policy {policy} cannot run with {settings.memory_gb:g} GB: {plan.reason}")
    return plan


@contextmanager
def _marked_run(run_dir: RunDirectory) -> Iterator[RunState]:
    """Mark the run on the machine; on the way out nothing of it remains, however it ended."""
    state = new_run()
    try:
        mark_run(state, run_dir.path)
        yield state
    finally:
        # The user's second Ctrl-C must not stop the clean-up that the first one started.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        release_run(state.run_id)
        run_dir.give_to_caller()
        signal.signal(signal.SIGINT, previous)


def _run(prepared: Prepared, state: RunState, run_dir: RunDirectory, console: Console) -> dict[str, Any]:
    settings, topology, epoch = prepared.settings, prepared.topology, prepared.epoch
    began = time.monotonic()
    with ExitStack() as undo:
        network = build_network(topology, prepared.links, prepared.link_kind, state.run_id, settings.hosts_per_island)
        undo.callback(network.close)
        console.print(
            f"network: {len(network.pids)} nodes and {len(prepared.links)} links in {time.monotonic() - began:.2f} s"
        )
        run_dir.event("network_built", nodes=len(network.pids), links=len(prepared.links))

        fleet = Fleet(run_dir.logs)
        undo.callback(fleet.stop)
        start_up = StartUp(topology, epoch, prepared.framing, prepared.workload, settings, network, state, run_dir.logs)
        started = start_processes(fleet, start_up)
        run_dir.event("processes_started")

        # After the processes, so that the time until all trees are ready is one stretch of time.
        plane = prepared.plane.start(Site(topology, network.pids, state.run_id, run_dir.path))
        undo.callback(plane.close)
        readiness = introduce_epoch(fleet, start_up, plane, epoch)
        _report_readiness(plane, readiness, epoch, run_dir, console)
        console.print(f"ready: {time.monotonic() - began:.1f} s from start")

        counters_before = network.links.counters()
        records = run_rounds(
            fleet,
            epoch,
            started.areas,
            settings.rounds,
            settings.scale.time_dilation,
            lambda record: _report_round(record, prepared, run_dir, console),
        )
        counters_after = network.links.counters()
        fleet.send(fleet.of("trainer"), "evaluate")
        evaluated = fleet.gather(fleet.of("trainer"), "evaluated", TRAINING_TIMEOUT_S * settings.scale.time_dilation)
        loads = _loads(prepared, records, counters_before, counters_after)
        run_dir.rounds(records, settings.scale)
        run_dir.event("finished", rounds=len(records))
        return summarise(
            Outcome(
                settings=settings,
                epoch=epoch,
                records=records,
                loads=loads,
                saving=saving(loads, topology, prepared.framing),
                evaluations={process.island: evaluated[process] for process in fleet.of("trainer")},
                memory=memory_budget(topology, settings, prepared.framing),
                links_kind=prepared.link_kind.name,
                multicast_plane=prepared.plane.name,
                run_dir=str(run_dir.path),
                warnings=started.warnings,
            )
        )


def _loads(
    prepared: Prepared,
    records: Sequence[RoundRecord],
    before: Mapping[Direction, DirectionCounters],
    after: Mapping[Direction, DirectionCounters],
) -> list[LinkLoad]:
    """What each link should have carried in these rounds, and did."""
    settings, topology = prepared.settings, prepared.topology
    rounds = [(prepared.epoch, record.phase) for record in records]
    hosts = settings.hosts_per_island
    planned = planned_streams(rounds, topology, settings.aggregation, hosts)
    unicast = planned_streams(rounds, topology, settings.aggregation, hosts, copies=True)
    seconds = (records[-1].start_ns - records[0].start_ns) / 1e9 if records else 0.0
    allowed = UNPLANNED_BYTES + (round(ROUTING_BYTES_PER_S * seconds) if prepared.plane.name == "pim" else 0)
    return link_loads(planned, unicast, prepared.framing, before, after, allowed)


def _report_readiness(
    plane: RunningPlane, readiness: Readiness, epoch: Epoch, run_dir: RunDirectory, console: Console
) -> None:
    """Say how long it took from the first process or socket of multicast to proven trees."""
    steps_ms = {**plane.timings_ms, **readiness.steps_ms} if epoch.number == 0 else readiness.steps_ms
    installed_ms = sum(steps_ms.values()) - steps_ms["probes"]
    worst = max(readiness.paths, key=lambda path: abs(path.measured_ms - path.planned_ms))
    steps = ", ".join(f"{step} {milliseconds:.0f} ms" for step, milliseconds in steps_ms.items())
    console.print(
        f"multicast: {len(epoch.distinct_trees())} trees in {installed_ms / 1e3:.2f} s ({steps}); "
        f"{len(readiness.paths)} paths proven, worst delay error {abs(worst.measured_ms - worst.planned_ms):.2f} ms"
    )
    run_dir.event(
        "multicast_ready",
        epoch=epoch.number,
        installed_ms=installed_ms,
        steps_ms=steps_ms,
        paths=[vars(path) for path in readiness.paths],
    )


def _report_round(record: RoundRecord, prepared: Prepared, run_dir: RunDirectory, console: Console) -> None:
    scale, rounds = prepared.settings.scale, prepared.settings.rounds
    expected, delivered = record.total("expected"), record.total("delivered")
    verdict = "sums exact" if record.exact else "SUMS WRONG"
    verdict += ", digests equal" if record.digests_equal else ", DIGESTS DIFFER"
    console.print(
        f"round {record.number + 1:>{len(str(rounds))}}/{rounds}: "
        f"{scale.undilated_ms(record.completion_ns):.1f} ms of {scale.undilated_ms(record.planned_ns):.1f} "
        f"+ {scale.undilated_ms(record.packetisation_ns):.1f}, ratio {record.ratio:.3f}, "
        f"{delivered} of {expected} contributions, {verdict}"
    )
    run_dir.event(
        "round",
        round=record.number,
        epoch=record.epoch,
        phase=record.phase,
        start_ns=record.start_ns,
        completion_ns=record.completion_ns,
        exact=record.exact,
        digests_equal=record.digests_equal,
        done=record.done,
        retired=record.retired,
        applied=record.applied,
    )
