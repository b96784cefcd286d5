"""One experiment from its settings to its summary: plan, build, prove, run, measure, clean up."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from aggregator.wire.control import Message
from scheduler.plan import plan_to_json
from testbed.capture.captures import Captures
from testbed.errors import RunFailed
from testbed.live.capture_commands import capture_commands
from testbed.live.links import LiveLinks
from testbed.live.protocol import socket_path
from testbed.live.running import LiveRun
from testbed.live.server import ControlServer
from testbed.multicast.counters import RouterCounters, drop_warnings
from testbed.multicast.interface import Site
from testbed.network.emulated import EmulatedNetwork, build_network
from testbed.run.accounting import (
    PROBING_BYTES,
    UNPLANNED_BYTES,
    LinkLoad,
    link_loads,
    planned_streams,
    saving,
    unsummed_bytes,
)
from testbed.run.epochs import Epochs
from testbed.run.failures import FIND_WAYS_TIMEOUT_S, LinkFailures
from testbed.run.pace import Pace
from testbed.run.preparing import Prepared, prepare
from testbed.run.processes import TRAINING_TIMEOUT_S, Fleet
from testbed.run.program import Epoch
from testbed.run.reacting import Reactor
from testbed.run.reporting import report_reaction, report_readiness, report_round
from testbed.run.rounds import RoundRecord, run_rounds
from testbed.run.rundir import RunDirectory, make_run_directory
from testbed.run.settings import NUMBER_FORMATS, RunSettings
from testbed.run.startup import StartUp, memory_budget, start_processes
from testbed.run.state import RunState, marked_run
from testbed.run.strain import Strain, StrainGauge
from testbed.run.summary import Outcome, summarise
from testbed.topology.files import topology_to_json
from testbed.verify.check import check_links_quickly


class Progress:
    """Where a run is; other threads may look."""

    def __init__(self) -> None:
        self.round = -1
        self.start_ns = 0


@dataclass(frozen=True)
class Running:
    """A run in the middle of its rounds, for those who act on it from other threads."""

    network: EmulatedNetwork
    epochs: Epochs
    failures: LinkFailures
    progress: Progress


@dataclass(frozen=True)
class Watchers:
    """What else happens with a run. `during` gets it before its rounds; `after` follows the rounds, all still up."""

    during: Callable[[Running], None] = lambda _running: None
    after: Callable[[Running], None] = lambda _running: None


def run_experiment(settings: RunSettings, console: Console, watchers: Watchers = Watchers()) -> dict[str, Any]:
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
        summary = _run(prepared, state, run_dir, console, watchers)
        run_dir.summary(summary)
        return summary


def _run(
    prepared: Prepared, state: RunState, run_dir: RunDirectory, console: Console, watchers: Watchers
) -> dict[str, Any]:
    settings, topology, epoch = prepared.settings, prepared.topology, prepared.epoch
    began = time.monotonic()
    with ExitStack() as undo:
        network = build_network(
            topology,
            prepared.links,
            prepared.link_kind,
            state.run_id,
            settings.hosts_per_island,
            routed=not prepared.plane.finds_ways,
        )
        undo.callback(network.close)
        state.note_nodes(network.pids)
        console.print(
            f"network: {len(network.pids)} nodes and {len(prepared.links)} links in {time.monotonic() - began:.2f} s"
        )
        run_dir.event("network_built", nodes=len(network.pids), links=len(prepared.links))
        dilation = settings.scale.time_dilation
        captures = Captures(prepared.capture_points, network.pids, network.links, run_dir, state.run_id, dilation)
        undo.callback(captures.finish)
        if settings.capture:
            captures.start(settings.capture, settings.capture_bytes)
        _check_links(prepared, network, run_dir, console)

        fleet = Fleet(run_dir.logs)
        undo.callback(fleet.stop)
        live_links = LiveLinks(prepared.links, network.links, settings.scale)
        live = _go_live(prepared, live_links, fleet, state, run_dir)
        server = ControlServer(
            socket_path(state.directory), state.run_id, fleet, live.commands() | capture_commands(captures)
        )
        undo.callback(server.close)
        start_up = StartUp(topology, epoch, prepared.framing, prepared.workload, settings, network, state, run_dir.logs)
        started = start_processes(fleet, start_up)
        run_dir.event("processes_started")

        # After the processes, so that the time until all trees are ready is one stretch of time.
        plane = prepared.plane.start(Site(topology, network.pids, state.run_id, run_dir.path))
        undo.callback(plane.close)
        router_counters = RouterCounters(network.pids, topology.nodes)
        epochs = Epochs(
            fleet,
            start_up,
            plane,
            prepared.make_epoch,
            lambda ready, readiness: report_readiness(plane, ready, readiness, run_dir, console),
            router_counters.note_removal,
            lambda: live_links.in_force(topology),
        )
        epochs.begin()
        epochs.schedule(prepared.changes)
        console.print(f"ready: {time.monotonic() - began:.1f} s from start")

        progress = Progress()
        failures = LinkFailures(
            # Routers that find their ways go by the delays that they were started with.
            lambda: topology if prepared.plane.finds_ways else live_links.in_force(topology),
            epochs,
            lambda left: prepared.plans_from(progress.round + 1, left),
            network.reroute,
            lambda reaction: report_reaction(reaction, run_dir, console),
            plane,
            prepared.plane.finds_ways,
            FIND_WAYS_TIMEOUT_S * settings.scale.time_dilation,
        )
        reactor = Reactor(failures.links_are_down)
        undo.callback(reactor.close)
        live_links.tell(reactor.links_are_down)
        step_ns = settings.scale.emulated_ns(settings.training.step_ms)
        timed = [*fleet.of("edge"), *fleet.of("dataplane")]
        gauge = StrainGauge(network.links, timed, settings.scale, step_ns)
        strains: list[Strain] = []
        running = Running(network, epochs, failures, progress)
        watchers.during(running)

        def round_started(number: int, start_ns: int) -> None:
            gauge.begin()
            progress.round, progress.start_ns = number, start_ns
            live.round_started(number, epochs.current.number, start_ns)

        def take_down(record: RoundRecord) -> None:
            strains.append(gauge.read(record))
            report_round(record, strains[-1], prepared, run_dir, console)
            reactor.check()

        records = run_rounds(
            fleet,
            epochs,
            started.areas,
            settings.rounds,
            NUMBER_FORMATS[settings.number_format].wire,
            Pace(settings.training, settings.scale),
            round_started,
            take_down,
            failures.disturbed,
            gauge.counters,
            plane.routing_bytes,
        )
        warnings = [*started.warnings, *network.links.warnings, *live.rounds_done()]
        reactor.finish()
        fleet.send(fleet.of("trainer"), "evaluate")
        evaluated = fleet.gather(fleet.of("trainer"), "evaluated", TRAINING_TIMEOUT_S * settings.scale.time_dilation)
        used = [each for each in epochs.all.values() if any(record.epoch == each.number for record in records)]
        loads = _loads(prepared, used, records)
        drops = router_counters.read(trees_moved=any(record.disturbed for record in records))
        run_dir.rounds(records, strains, settings.scale)
        run_dir.mixing(records, topology.island_ids)
        memory = memory_budget(topology, settings, prepared.framing)
        run_dir.memory(records, settings.scale, memory.slot_bytes)
        run_dir.event("finished", rounds=len(records), drops={router: asdict(each) for router, each in drops.items()})
        capture_warnings = captures.finish()
        watchers.after(running)
        return summarise(
            Outcome(
                settings=settings,
                epochs=used,
                records=records,
                strains=strains,
                loads=loads,
                saving=saving(loads, topology, prepared.framing),
                evaluations={process.island: _measures(message) for process, message in evaluated.items()},
                memory=memory,
                links_kind=prepared.link_kind.name,
                multicast_plane=prepared.plane.name,
                reactions=failures.reactions,
                run_dir=str(run_dir.path),
                warnings=[*warnings, *drop_warnings(drops), *capture_warnings],
            )
        )


def _measures(evaluated: Message) -> dict[str, float]:
    return {name: value for name, value in evaluated.items() if name != "type"}


def _loads(prepared: Prepared, epochs: Sequence[Epoch], records: Sequence[RoundRecord]) -> list[LinkLoad]:
    """What each link should have carried, and did, in the rounds in which no link failed."""
    settings, topology = prepared.settings, prepared.topology
    by_number = {epoch.number: epoch for epoch in epochs}
    steady = [record for record in records if not record.disturbed]
    rounds = [(by_number[record.epoch], record.phase) for record in steady]
    hosts = settings.hosts_per_island
    planned = planned_streams(rounds, topology, settings.aggregation, hosts)
    unicast = planned_streams(rounds, topology, settings.aggregation, hosts, copies=True)
    # Where hosts sum, nothing is summed at the edges by plan.
    extra = unsummed_bytes(steady, prepared.framing, hosts) if settings.aggregation == "edge" else {}
    allowed = UNPLANNED_BYTES + PROBING_BYTES * (len(epochs) - 1)
    return link_loads(planned, unicast, extra, prepared.framing, steady, allowed)


def _go_live(prepared: Prepared, links: LiveLinks, fleet: Fleet, state: RunState, run_dir: RunDirectory) -> LiveRun:
    settings = prepared.settings
    about = {
        "run": state.run_id,
        "topology": prepared.topology.name,
        "policy": settings.policy,
        "rounds": settings.rounds,
        "links_kind": prepared.link_kind.name,
        "multicast_plane": prepared.plane.name,
        "run_dir": str(run_dir.path),
    }
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
