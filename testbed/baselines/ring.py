"""Synchronous training by ring all-reduce over TCP, on the same emulated links, namespaces and emulated accelerators.

Every step waits for the all-reduce of the whole payload: by PyTorch's Gloo, or by a plain ring in which every part
moves on as soon as it is there. The kernel's TCP carries both. To the baseline's advantage the ring is the best there
is on the core links, TCP does not slow down after a pause, and the first steps, in which it finds its rate, are not
counted.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from rich.console import Console

from agents.workloads import load_workload
from agents.workloads.interface import Setting
from scheduler.ring import Ring, best_ring
from scheduler.topology import Topology
from testbed.errors import RunFailed, TestbedError
from testbed.links.kinds import choose_link_kind
from testbed.live.settings import applied
from testbed.network import naming
from testbed.network.emulated import EmulatedNetwork, build_network, emulated_links
from testbed.network.namespaces import entered, write_sysctls
from testbed.run.frames import frame_payload
from testbed.run.machine import check_machine
from testbed.run.nursery import Nursery
from testbed.run.opening import choose_run_directory
from testbed.run.processes import ANSWER_TIMEOUT_S, TRAINING_TIMEOUT_S, Fleet
from testbed.run.rounds import Counters
from testbed.run.rundir import RunDirectory, check_run_directory, make_run_directory
from testbed.run.settings import RunSettings
from testbed.run.state import RunState, marked_run
from testbed.topology.files import topology_to_json
from testbed.topology.load import load_topology
from testbed.verify.check import check_links_quickly

TRANSPORTS = {"ring-tcp": "tcp", "ring-gloo": "gloo"}
"""The baselines by name, each with what carries its ring."""
WARM_UP_STEPS = 2
_MODULE = "agents.ring"
_TCP = {"ipv4.tcp_slow_start_after_idle": "0"}


def run_ring(settings: RunSettings, console: Console, evaluate_every: int = 0) -> dict[str, Any]:
    """Train `settings.rounds` steps by the ring that `settings.policy` names; returns what was predicted and measured.

    `evaluate_every`: also measure the models at the start and after each so many steps (`curve`: by the steps done, of
    each island), which no step's time includes.

    Raises TestbedError or PlanError for bad input or an unfit machine, before anything is changed; RunFailed.
    """
    topology = load_topology(settings.topology)
    naming.check_names(topology)
    if TRANSPORTS[settings.policy] == "gloo" and find_spec("torch") is None:
        raise TestbedError("ring-gloo needs PyTorch: vagrant/provision.sh --torch installs Debian's")
    if settings.rounds <= WARM_UP_STEPS:
        raise TestbedError(f"--steps {settings.rounds}: the first {WARM_UP_STEPS} are not counted; ask for more")
    check_run_directory(settings.out)
    ring = best_ring(topology, settings.payload_gb)
    links = applied(emulated_links(topology, settings.scale, settings.seed), settings.link_settings, settings.scale)
    check_machine(len(naming.node_names(topology, hosts=1)))
    kind = choose_link_kind(settings.links, links)
    console.print(
        f"ring: {' '.join(ring.islands)}: {ring.pipelined_ms:.1f} ms if parts move on by themselves, "
        f"{ring.synchronous_ms:.1f} if every step waits for all"
    )
    run_dir = make_run_directory(choose_run_directory(settings.out, settings.policy), settings.out)
    with marked_run(run_dir.path, run_dir.give_to_caller) as state, ExitStack() as undo:
        run_dir.manifest(settings, state.run_id, topology_to_json(topology), asdict(ring))
        nursery = Nursery(state.run_id, run_dir.logs, [_MODULE])
        undo.callback(nursery.close)
        network = build_network(topology, links, kind, state.run_id)
        undo.callback(network.close)
        wrong = [found for found in check_links_quickly(links, network.pids, settings.scale) if not found.ok]
        if wrong:
            raise RunFailed(f"link {wrong[0].link}: {'; '.join(wrong[0].wrong)}; testbed verify measures them all")
        fleet = Fleet(run_dir.logs)
        undo.callback(fleet.stop)
        report = _train(fleet, nursery, network, ring, settings, state, run_dir, evaluate_every)
        summary = {
            "baseline": settings.policy,
            "topology": topology.name,
            "workload": settings.workload,
            "islands": list(ring.islands),
            "steps": settings.rounds,
            "step_ms": settings.training.step_ms,
            "links_kind": kind.name,
            "predicted": predicted(ring, settings.training.step_ms),
            **report,
            "run_dir": str(run_dir.path),
            "warnings": list(network.links.warnings),
        }
        run_dir.summary(summary)
        return summary


def predicted(ring: Ring, step_ms: float) -> dict[str, float]:
    """Times and idle fractions of the two kinds of ring, for steps that compute `step_ms`."""
    return {
        "pipelined_ms": ring.pipelined_ms,
        "synchronous_ms": ring.synchronous_ms,
        "pipelined_idle_fraction": ring.pipelined_ms / (ring.pipelined_ms + step_ms),
        "synchronous_idle_fraction": ring.synchronous_ms / (ring.synchronous_ms + step_ms),
    }


def _train(
    fleet: Fleet,
    nursery: Nursery,
    network: EmulatedNetwork,
    ring: Ring,
    settings: RunSettings,
    state: RunState,
    run_dir: RunDirectory,
    evaluate_every: int,
) -> dict[str, Any]:
    topology: Topology = network.topology
    values = frame_payload(settings.scale.size_bytes(settings.payload_gb)).values
    setting = Setting(state.memory, settings.seed, len(topology.islands), values)
    load_workload(settings.workload).prepare(setting)
    for name in ring.islands:
        host = network.pids[naming.host_name(name)]
        with entered(host):
            write_sysctls(_TCP)
        fleet.add(nursery.spawn("ring", _MODULE, name, host))
    members = fleet.of("ring")
    common = {
        "transport": TRANSPORTS[settings.policy],
        "world_size": len(ring.islands),
        "interface": naming.HOST_TO_EDGE,
        "meeting_point": str(state.memory / "meeting-point"),
        "workload": settings.workload,
        "workload_dir": str(state.memory),
        "seed": settings.seed,
        "values": values,
    }
    addresses = [naming.host_address(topology.island_ids.index(name)) for name in ring.islands]
    places = {
        member: {
            "rank": rank,
            "island_id": topology.island_ids.index(member.island),
            "address": addresses[rank],
            "next_address": addresses[(rank + 1) % len(addresses)],
        }
        for rank, member in enumerate(members)
    }
    fleet.send_each({member: common | place for member, place in places.items()}, "setup")
    fleet.gather(members, "hello", TRAINING_TIMEOUT_S)
    dilation = settings.scale.time_dilation
    fleet.send(members, "join")
    fleet.gather(members, "joined", ANSWER_TIMEOUT_S * dilation)
    began, before = time.monotonic(), network.links.counters()
    fleet.send(
        members,
        "go",
        steps=settings.rounds,
        step_ns=settings.scale.emulated_ns(settings.training.step_ms),
        evaluate_every=evaluate_every,
    )
    done = fleet.gather(members, "done", TRAINING_TIMEOUT_S * dilation)
    after = network.links.counters()
    run_dir.event("trained", seconds=time.monotonic() - began, times={each.island: done[each] for each in members})
    fleet.send(members, "evaluate")
    evaluated = fleet.gather(members, "evaluated", TRAINING_TIMEOUT_S)
    return {
        "measured": {
            **measured(list(done.values()), settings),
            "core_gb_per_step": settings.scale.full_size_gb(core_bytes(topology, before, after)) / settings.rounds,
            "dropped_frames": sum(now.dropped_queue - before[ends].dropped_queue for ends, now in after.items()),
        },
        "evaluations": {member.island: _values(message) for member, message in evaluated.items()},
        "curve": {
            steps: {member.island: message["curve"][steps] for member, message in done.items()}
            for steps in done[members[0]]["curve"]
        },
    }


def _values(message: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in message.items() if name != "type"}


def core_bytes(topology: Topology, before: Counters, after: Counters) -> int:
    """On-wire bytes that all core links together took in between two readings of the counters."""
    core = {link.id for link in topology.links}
    return sum(after[ends].bytes_in - before[ends].bytes_in for ends in core)


def measured(reports: Sequence[Mapping[str, Any]], settings: RunSettings) -> dict[str, Any]:
    """Of the steps after the first ones: times of exchanges and steps in ms, undilated, and the idle fraction."""
    scale = settings.scale
    exchanges = [[scale.undilated_ms(ns) for ns in report["exchanges_ns"][WARM_UP_STEPS:]] for report in reports]
    steps = [[scale.undilated_ms(ns) for ns in report["steps_ns"][WARM_UP_STEPS:]] for report in reports]
    longest = [max(of_step) for of_step in zip(*exchanges, strict=True)]
    step_ms = statistics.fmean(statistics.fmean(of_island) for of_island in steps)
    exchange_ms = statistics.fmean(statistics.fmean(of_island) for of_island in exchanges)
    return {
        "exchange_ms": {"median": statistics.median(longest), "max": max(longest), "mean": exchange_ms},
        "step_ms": step_ms,
        "steps_per_s": 1e3 / step_ms,
        "idle_fraction": exchange_ms / step_ms,
    }
