"""One experiment from its settings to its summary: plan, build, prove, run, measure, clean up."""

import time
from contextlib import ExitStack
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
from testbed.errors import RunFailed, TestbedError
from testbed.links.interface import Link, LinkKind
from testbed.links.kinds import choose_link_kind
from testbed.live.links import LiveLinks
from testbed.live.protocol import socket_path
from testbed.live.running import LiveRun
from testbed.live.scenario import Event, load_scenario
from testbed.live.server import ControlServer
from testbed.live.settings import applied
from testbed.multicast.interface import MulticastPlane
from testbed.multicast.planes import choose_plane
from testbed.network import naming
from testbed.network.emulated import EmulatedNetwork, build_network, emulated_links
from testbed.policies import find_policy
from testbed.run.accounting import link_loads, planned_bytes, unsummed_bytes
from testbed.run.frames import Framing, frame_payload
from testbed.run.machine import check_machine
from testbed.run.probing import probe_trees
from testbed.run.processes import Fleet
from testbed.run.program import Epoch, make_epoch
from testbed.run.rounds import TRAINING_TIMEOUT_S, RoundRecord, run_rounds
from testbed.run.rundir import RunDirectory, check_run_directory, make_run_directory
from testbed.run.settings import NUMBER_FORMATS, RunSettings
from testbed.run.startup import StartUp, announce_epoch, memory_budget, start_processes
from testbed.run.state import RunState, marked_run
from testbed.run.strain import Strain, StrainGauge, strain_to_json
from testbed.run.summary import Outcome, summarise
from testbed.topology.files import topology_to_json
from testbed.topology.load import load_topology
from testbed.verify.check import check_links_quickly


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
    scenario: tuple[Event, ...]


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
    with marked_run(run_dir.path, run_dir.give_to_caller) as state:
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
    _check_engine(settings)
    check_run_directory(settings.out)
    policy = find_policy(settings.policy)
    plan = make_plan(topology, policy, memory_gb=settings.memory_gb, payload_gb=settings.payload_gb)
    if not plan.feasible:
        raise TestbedError(f"policy {settings.policy} cannot run with {settings.memory_gb:g} GB: {plan.reason}")
    framing = frame_payload(settings.scale.size_bytes(settings.payload_gb))
    needed = value_count(workload.tensors(Setting(Path(), settings.seed, len(topology.islands), framing.values)))
    if needed > framing.values:
        raise TestbedError(
            f"workload {settings.workload} has {needed} values, but a payload of {settings.payload_gb:g} GB at rate "
            f"scale {settings.scale.rate_scale:g} carries {framing.values}; raise --payload-gb or --rate-scale"
        )
    epoch = make_epoch(0, plan, topology, framing, settings.scale)
    links = applied(emulated_links(topology, settings.scale, settings.seed), settings.link_settings, settings.scale)
    check_machine(3 * len(topology.islands) + len(topology.transits))
    link_kind = choose_link_kind(settings.links, links)
    scenario = load_scenario(settings.scenario, links, link_kind, settings.scale) if settings.scenario else ()
    plane = choose_plane(settings.multicast, topology, epoch.trees.values())
    return Prepared(settings, topology, plan, framing, epoch, workload, links, link_kind, plane, scenario)


def _check_engine(settings: RunSettings) -> None:
    """Raise TestbedError unless the engine is there and can do what is asked."""
    try:
        capabilities = make_engine(settings.engine).capabilities()
    except EngineError as error:
        raise TestbedError(f"--engine: {error}") from error
    if settings.edge.collision not in capabilities.collision_policies:
        known = ", ".join(capabilities.collision_policies)
        raise TestbedError(f"--collision {settings.edge.collision}: engine {settings.engine} has only {known}")
    if NUMBER_FORMATS[settings.number_format] not in capabilities.number_formats:
        raise TestbedError(f"--number-format {settings.number_format}: engine {settings.engine} cannot add it")
    if settings.edge.slots_per_source > 1:
        raise TestbedError(f"--slots-per-source {settings.edge.slots_per_source:g}: a share is at most 1")


def _run(prepared: Prepared, state: RunState, run_dir: RunDirectory, console: Console) -> dict[str, Any]:
    settings, topology, epoch = prepared.settings, prepared.topology, prepared.epoch
    began = time.monotonic()
    with ExitStack() as undo:
        network = build_network(topology, prepared.links, prepared.link_kind, state.run_id)
        undo.callback(network.close)
        built = time.monotonic()
        plane = prepared.plane.start(topology, network.pids)
        undo.callback(plane.close)
        plane.install(epoch.trees.values())
        console.print(
            f"network: {len(network.pids)} nodes and {len(prepared.links)} links in {built - began:.2f} s, "
            f"{len(set(epoch.trees.values()))} trees in {(time.monotonic() - built) * 1e3:.0f} ms"
        )
        run_dir.event("network_built", nodes=len(network.pids), links=len(prepared.links))
        _check_links(prepared, network, run_dir, console)

        fleet = Fleet(run_dir.logs)
        undo.callback(fleet.stop)
        live = _go_live(prepared, network, fleet, state, run_dir)
        server = ControlServer(socket_path(state.directory), state.run_id, fleet, live.commands())
        undo.callback(server.close)
        start_up = StartUp(topology, epoch, prepared.framing, prepared.workload, settings, network, state, run_dir.logs)
        started = start_processes(fleet, start_up)
        announce_epoch(fleet, start_up)
        run_dir.event("processes_started")
        paths = probe_trees(fleet, epoch, topology, settings.scale)
        worst = max(paths, key=lambda path: abs(path.measured_ms - path.planned_ms), default=None)
        worst_text = f", worst delay error {abs(worst.measured_ms - worst.planned_ms):.2f} ms" if worst else ""
        console.print(
            f"ready: {len(paths)} multicast paths proven by probes{worst_text}; "
            f"{time.monotonic() - began:.1f} s from start"
        )
        run_dir.event("probed", paths=[vars(path) for path in paths])

        gauge = StrainGauge(network.links, fleet, settings.scale)
        counters_before = gauge.counters
        strains: list[Strain] = []

        def round_started(number: int, start_ns: int) -> None:
            gauge.begin()
            live.round_started(number, start_ns)

        def take_down(record: RoundRecord) -> None:
            strains.append(gauge.read(record))
            _report_round(record, strains[-1], prepared, run_dir, console)

        records = run_rounds(
            fleet,
            epoch,
            started.areas,
            settings.rounds,
            settings.scale.time_dilation,
            NUMBER_FORMATS[settings.number_format],
            round_started,
            take_down,
        )
        warnings = [*started.warnings, *network.links.warnings, *live.rounds_done()]
        counters_after = gauge.counters
        fleet.send(fleet.of("trainer"), "evaluate")
        evaluated = fleet.gather(fleet.of("trainer"), "evaluated", TRAINING_TIMEOUT_S * settings.scale.time_dilation)
        planned = planned_bytes(epoch, topology, prepared.framing, [record.phase for record in records])
        for direction, extra in unsummed_bytes(records, prepared.framing).items():
            planned[direction] += extra
        run_dir.rounds(records, strains, settings.scale)
        memory = memory_budget(topology, settings, prepared.framing)
        run_dir.memory(records, settings.scale, memory.slot_bytes)
        run_dir.event("finished", rounds=len(records))
        return summarise(
            Outcome(
                settings=settings,
                epoch=epoch,
                records=records,
                strains=strains,
                loads=link_loads(planned, counters_before, counters_after),
                evaluations={process.island: evaluated[process] for process in fleet.of("trainer")},
                memory=memory,
                links_kind=prepared.link_kind.name,
                multicast_plane=prepared.plane.name,
                run_dir=str(run_dir.path),
                warnings=warnings,
            )
        )


def _go_live(
    prepared: Prepared, network: EmulatedNetwork, fleet: Fleet, state: RunState, run_dir: RunDirectory
) -> LiveRun:
    settings = prepared.settings
    about = {
        "run": state.run_id,
        "topology": prepared.topology.name,
        "policy": settings.policy,
        "epoch": prepared.epoch.number,
        "rounds": settings.rounds,
        "links_kind": prepared.link_kind.name,
        "multicast_plane": prepared.plane.name,
        "run_dir": str(run_dir.path),
    }
    links = LiveLinks(prepared.links, network.links, settings.scale)
    return LiveRun(about, links, prepared.scenario, fleet, run_dir, settings.scale)


def _check_links(prepared: Prepared, network: EmulatedNetwork, run_dir: RunDirectory, console: Console) -> None:
    """Raises RunFailed, before any traffic, if a link is not what was asked."""
    began = time.monotonic()
    findings = check_links_quickly(prepared.links, network.pids, prepared.settings.scale)
    run_dir.event("links_checked", links=[finding.to_json() for finding in findings])
    wrong = [finding for finding in findings if not finding.ok]
    if wrong:
        others = f" ({len(wrong) - 1} more directions are wrong, see events.jsonl)" if len(wrong) > 1 else ""
        raise RunFailed(
            f"link {wrong[0].link}: {'; '.join(wrong[0].wrong)}{others}; testbed verify measures them all; on a busy "
            "machine try a larger --time-dilation"
        )
    console.print(f"links: {len(findings)} directions are what was asked, checked in {time.monotonic() - began:.2f} s")


def _report_round(
    record: RoundRecord, strain: Strain, prepared: Prepared, run_dir: RunDirectory, console: Console
) -> None:
    scale, rounds = prepared.settings.scale, prepared.settings.rounds
    expected, delivered = record.total("expected"), record.total("delivered")
    right = "exact" if prepared.settings.number_format == "fixed" else "right but for rounding"
    verdict = f"sums {right}" if record.exact else "SUMS WRONG"
    verdict += ", digests equal" if record.digests_equal else ", DIGESTS DIFFER"
    if strain.reasons:
        verdict += f"; NOT TRUSTWORTHY: {'; '.join(strain.reasons)}"
    console.print(
        f"round {record.number + 1:>{len(str(rounds))}}/{rounds}: "
        f"{scale.undilated_ms(record.completion_ns):.1f} ms of {scale.undilated_ms(record.planned_ns):.1f} "
        f"+ {scale.undilated_ms(record.packetisation_ns):.1f}, ratio {record.ratio:.3f}, "
        f"{delivered} of {expected} contributions, {verdict}"
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
        exact=record.exact,
        digests_equal=record.digests_equal,
        done=record.done,
        retired=record.retired_without_occupancy(),
        prepared=record.ready,
        applied=record.applied,
        strain=strain_to_json(strain),
    )
