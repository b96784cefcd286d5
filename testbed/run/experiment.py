"""One experiment from its settings to its summary: plan, build, prove, run, measure, clean up."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console

from aggregator.wire.control import Message
from scheduler.plan import plan_to_json
from testbed.capture.captures import Captures
from testbed.errors import RunFailed
from testbed.live.capture_commands import capture_commands
from testbed.live.conducting import conducting_commands
from testbed.live.link_commands import link_commands
from testbed.live.links import LiveLinks
from testbed.live.player import Player
from testbed.live.policy_commands import policy_commands
from testbed.live.running import LiveRun
from testbed.multicast.counters import RouterCounters, drop_warnings
from testbed.multicast.interface import MulticastError, RunningPlane, Site
from testbed.network import naming
from testbed.network.emulated import EmulatedNetwork, build_network
from testbed.policies import COMPARED
from testbed.run.accounting import saving
from testbed.run.epochs import Epochs
from testbed.run.failures import FIND_WAYS_TIMEOUT_S, LinkFailures, Reaction
from testbed.run.loads import run_loads
from testbed.run.nursery import Nursery
from testbed.run.opening import OpenRun, opened
from testbed.run.pace import Pace
from testbed.run.planning import Planner, PlanRequest
from testbed.run.preparing import Prepared, prepare
from testbed.run.processes import ANSWER_TIMEOUT_S, TRAINING_TIMEOUT_S, Fleet
from testbed.run.reacting import Reactor
from testbed.run.repairs import Closing
from testbed.run.reporting import (
    report_end,
    report_reaction,
    report_readiness,
    report_round,
    report_swap,
    round_to_json,
)
from testbed.run.rounds import RoundHooks, RoundRecord, Rounds
from testbed.run.rundir import RunDirectory, make_run_directory
from testbed.run.settings import NUMBER_FORMATS, RunSettings, settings_to_json
from testbed.run.startup import MODULES, Started, StartUp, memory_budget, start_processes
from testbed.run.state import RunState
from testbed.run.strain import Strain, StrainGauge
from testbed.run.summary import Outcome, summarise
from testbed.run.swaps import Left, Swaps
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
    """Run one experiment and return its summary, as `perform` does."""
    with opened(settings) as run:
        return perform(run, console, watchers)


def perform(run: OpenRun, console: Console, watchers: Watchers = Watchers()) -> dict[str, Any]:
    """Run an experiment that has been opened and return its summary; progress goes to `console`.

    Raises TestbedError for bad input or an unfit machine, before anything is changed; RunFailed when the run cannot go
    on. Whatever happens, nothing of the run is left but its directory.
    """
    settings, live = run.settings, run.live
    prepared = prepare(settings)
    console.print(
        f"plan: {settings.policy} on {prepared.topology.name}, {settings.memory_gb:g} GB: "
        f"T = {prepared.plan.round_time_ms:.1f} ms; links {prepared.link_kind.name}, multicast {prepared.plane.name}"
    )
    run_dir = make_run_directory(run.directory, settings.out)
    run.at_end.callback(run_dir.give_to_caller)
    topology = topology_to_json(prepared.topology)
    run_dir.manifest(settings, run.state.run_id, topology, plan_to_json(prepared.plan))
    run_dir.event(
        "planned",
        policy=settings.policy,
        round_time_ms=prepared.plan.round_time_ms,
        run_dir=str(run_dir.path),
        settings=settings_to_json(settings),
        topology=topology,
        links_kind=prepared.link_kind.name,
        multicast_plane=prepared.plane.name,
    )
    live.learn(
        topology=prepared.topology.name,
        policy=prepared.plan.policy,
        links_kind=prepared.link_kind.name,
        multicast_plane=prepared.plane.name,
        run_dir=str(run_dir.path),
    )
    live.commands |= conducting_commands(
        run.conductor, lambda command, number: run_dir.event("conducted", command=command, round=number)
    )
    live.enter("building")
    try:
        summary = _run(prepared, run, run_dir, console, watchers)
    except (RunFailed, MulticastError) as error:
        with suppress(RunFailed):  # the disk may be full
            run_dir.event("failed", reason=str(error))
        raise
    run_dir.summary(summary)
    return summary


@dataclass(frozen=True)
class _Site:
    """A network with its processes, and its first epoch in operation."""

    network: EmulatedNetwork
    links: LiveLinks
    fleet: Fleet
    started: Started
    plane: RunningPlane
    router_counters: RouterCounters
    epochs: Epochs
    captures: Captures
    planner: Planner


def _run(
    prepared: Prepared, run: OpenRun, run_dir: RunDirectory, console: Console, watchers: Watchers
) -> dict[str, Any]:
    live, conductor = run.live, run.conductor
    with ExitStack() as undo:
        site = _build(prepared, run.state, run_dir, console, live, undo)
        settings, fleet, epochs = prepared.settings, site.fleet, site.epochs
        swaps, failures, reactor = _watch_links(prepared, site, run_dir, console, undo)
        live.commands |= policy_commands(swaps, epochs, conductor)
        player = Player(prepared.scenario, site.links, fleet, run_dir, settings.scale)
        timed = _schedule(prepared, swaps)
        # Without overlap, training that takes longer only moves the start of a round, and not what is measured of it.
        step_ns = settings.scale.emulated_ns(settings.training.step_ms) if settings.training.overlap else 0
        watched = [*fleet.of("edge"), *fleet.of("dataplane")]
        gauge = StrainGauge(site.network.links, watched, settings.scale, step_ns)
        strains: list[Strain] = []
        memory = memory_budget(prepared.topology, settings, prepared.framing)
        running = Running(site.network, epochs, failures, Progress())
        watchers.during(running)

        def round_started(number: int, start_ns: int) -> None:
            gauge.begin()
            running.progress.round, running.progress.start_ns = number, start_ns
            conductor.started(number)
            swaps.round_started(number)
            live.learn(round=number, epoch=epochs.current.number, policy=epochs.current.plan.policy)
            live.enter("running")
            if number == 0:
                player.begin(start_ns, timed)

        def judged(record: RoundRecord) -> None:
            strains.append(gauge.read(record))
            run_dir.round(record, strains[-1], settings.scale)
            run_dir.memory(record, settings.scale, memory.slot_bytes)
            run_dir.mixing(record, prepared.topology.island_ids)
            report_round(record, strains[-1], prepared, run_dir, console)
            live.learn(last=round_to_json(record))
            reactor.check()
            site.plane.check()

        rounds = Rounds(
            fleet,
            epochs,
            site.started.areas,
            NUMBER_FORMATS[settings.number_format].wire,
            Pace(settings.training, settings.scale),
            RoundHooks(
                started=round_started,
                judged=judged,
                between=lambda number: swaps.switch(number, fleet),
                disturbed=failures.disturbed,
                counters=gauge.counters,
                routing_bytes=site.plane.routing_bytes,
            ),
        )
        try:
            rounds.run(conductor)
        except MulticastError as error:
            raise RunFailed(str(error)) from error
        live.enter("finishing")
        warnings = [*site.started.warnings, *site.network.links.warnings, *player.end()]
        reactor.finish()
        fleet.refuse_questions()
        swaps.close()
        outcome = _conclude(prepared, site, rounds.records, strains, failures, swaps, warnings, run_dir)
        watchers.after(running)
        return summarise(outcome)


def _build(
    prepared: Prepared, state: RunState, run_dir: RunDirectory, console: Console, live: LiveRun, undo: ExitStack
) -> _Site:
    """Build everything and prove it, up to the first round. Raises RunFailed, LinkError or MulticastError."""
    settings, topology = prepared.settings, prepared.topology
    began = time.monotonic()
    # It loads its modules while the network is built.
    nursery = Nursery(state.run_id, run_dir.logs, [*MODULES.values(), "numpy.random"])
    undo.callback(nursery.close)
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
    live.commands |= capture_commands(captures)
    if settings.capture:
        captures.start(settings.capture, settings.capture_bytes)
    _check_links(prepared, network, run_dir, console)

    fleet = Fleet(run_dir.logs)
    undo.callback(fleet.stop)
    links = LiveLinks(prepared.links, network.links, settings.scale)
    live.commands |= link_commands(links, run_dir.event)
    planner = Planner(state.run_id, run_dir.logs)
    undo.callback(planner.stop)
    in_force = links.in_force(topology)
    planner.start([PlanRequest(settings, in_force, policy, settings.memory_gb) for policy in COMPARED])
    start_up = StartUp(topology, prepared.epoch, prepared.framing, prepared.workload, settings, network, state, nursery)
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
        lambda: links.in_force(topology),
    )
    epochs.begin()
    console.print(f"ready: {time.monotonic() - began:.1f} s from start")
    return _Site(network, links, fleet, started, plane, router_counters, epochs, captures, planner)


def _watch_links(
    prepared: Prepared, site: _Site, run_dir: RunDirectory, console: Console, undo: ExitStack
) -> tuple[Swaps, LinkFailures, Reactor]:
    """From now on policies can be swapped, and links that change are answered."""
    settings, topology, epochs = prepared.settings, prepared.topology, site.epochs

    def reacted(reaction: Reaction) -> None:
        report_reaction(reaction, run_dir, console)
        if settings.replan != "never" and not reaction.cut_off and not reaction.trouble:
            swaps.replan()

    failures = LinkFailures(
        # Routers that find their ways go by the delays that they were started with.
        lambda: topology if prepared.plane.finds_ways else site.links.in_force(topology),
        epochs,
        site.network.reroute,
        reacted,
        site.plane,
        prepared.plane.finds_ways,
        FIND_WAYS_TIMEOUT_S * settings.scale.time_dilation,
    )
    swaps = Swaps(
        site.planner,
        epochs,
        settings,
        lambda: Left(failures.left(), failures.changes),
        lambda swap: report_swap(swap, run_dir, console),
    )
    undo.callback(swaps.close)
    undo.callback(site.fleet.refuse_questions)
    reactor = Reactor(failures.links_are_down)
    undo.callback(reactor.close)
    site.links.tell(reactor.links_are_down, swaps.replan if settings.replan == "always" else lambda: None)
    return swaps, failures, reactor


def _conclude(
    prepared: Prepared,
    site: _Site,
    records: Sequence[RoundRecord],
    strains: Sequence[Strain],
    failures: LinkFailures,
    swaps: Swaps,
    warnings: Sequence[str],
    run_dir: RunDirectory,
) -> Outcome:
    """Measure the models, read what links and routers have counted, and record it. Raises RunFailed."""
    settings, fleet, epochs = prepared.settings, site.fleet, site.epochs
    fleet.send(fleet.of("trainer"), "evaluate")
    evaluated = fleet.gather(fleet.of("trainer"), "evaluated", TRAINING_TIMEOUT_S * settings.scale.time_dilation)
    used = [each for each in epochs.all.values() if any(record.epoch == each.number for record in records)]
    loads = run_loads(prepared, used, records, epochs.introductions)
    drops = site.router_counters.read(trees_moved=any(record.disturbed for record in records))
    warnings = [*warnings, *_missed(settings, records), *drop_warnings(drops), *site.captures.finish()]
    outcome = Outcome(
        settings=settings,
        epochs=used,
        records=records,
        strains=strains,
        loads=loads,
        saving=saving(loads, prepared.topology, prepared.framing),
        evaluations={process.island: _measures(evaluated[process]) for process in fleet.of("trainer")},
        memory=memory_budget(prepared.topology, settings, prepared.framing),
        links_kind=prepared.link_kind.name,
        multicast_plane=prepared.plane.name,
        reactions=failures.reactions,
        swaps=swaps.all,
        closing=_closing(fleet, settings),
        run_dir=str(run_dir.path),
        warnings=warnings,
    )
    report_end(outcome, drops, run_dir)
    return outcome


def _closing(fleet: Fleet, settings: RunSettings) -> Closing:
    """What has been counted since the last round was reported. Raises RunFailed."""
    edges, hosts = fleet.of("edge"), fleet.of("dataplane")
    fleet.send([*edges, *hosts], "account")
    counts = fleet.gather([*edges, *hosts], "accounted", ANSWER_TIMEOUT_S * settings.scale.time_dilation)
    of_hosts = {naming.host_name(process.island, process.host): counts[process] for process in hosts}
    return Closing(
        edges={process.island: counts[process]["repair"] for process in edges},
        hosts={host: each["repair"] for host, each in of_hosts.items()},
        late={host: each["late"] for host, each in of_hosts.items()},
    )


def _measures(evaluated: Message) -> dict[str, float]:
    return {name: value for name, value in evaluated.items() if name != "type"}


def _schedule(prepared: Prepared, swaps: Swaps) -> list[tuple[float, Callable[[], object]]]:
    """Ask for the swaps that the schedule has at a round; returns those at a time: when, in ms, and the asking."""
    timed: list[tuple[float, Callable[[], object]]] = []
    for change, plan in prepared.changes:
        ask = partial(swaps.request, change.policy, change.memory_gb, "schedule", change.round, plan)
        if change.at_ms is None:
            ask()
        else:
            timed.append((change.at_ms, ask))
    return timed


def _missed(settings: RunSettings, records: Sequence[RoundRecord]) -> list[str]:
    """A warning if changes of the schedule lie after the end of the run."""
    rounds = [change.round for change in settings.policy_schedule if change.round is not None]
    missed = sum(number >= len(records) for number in rounds)
    return [f"{missed} changes of policy lie after the end of the run"] if missed else []


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
