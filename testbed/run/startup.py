"""Starting a run's processes and telling them what they need to know (docs/run-control.md)."""

import math
import secrets
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agents.exchange import ExchangeSettings
from agents.exchange_area import ExchangeArea, map_exchange_area
from agents.fixed_point import scale_exponents
from agents.lanes import WORD_BITS
from agents.workloads.interface import Setting, Workload
from aggregator.wire.tag import KEY_BYTES
from scheduler.topology import Topology
from testbed.errors import RunFailed
from testbed.network import naming
from testbed.network.emulated import EmulatedNetwork
from testbed.run.frames import Framing
from testbed.run.nursery import Nursery
from testbed.run.processes import ANSWER_TIMEOUT_S, TRAINING_TIMEOUT_S, Fleet, Process
from testbed.run.program import Epoch
from testbed.run.settings import NUMBER_FORMATS, RunSettings
from testbed.run.state import RunState

EXCHANGE_DEPTH = 4  # rounds that an exchange area holds: the one on its way, and those being checked
# After a stall, hosts send at most so much of the schedule at once: links hold 50 ms of their rate (the default queue).
MOST_CATCH_UP_MS = 20.0
MEMORY_FLOOR_MS = 5.0
MEMORY_FLOOR_SLOTS = 32
# Undilated. What is missing is waited for at least so long before it is asked for.
HOLD_OFF_MS = 10.0
REPAIR_INTERVAL_MS = 5.0

MODULES = {"edge": "aggregator.edge", "dataplane": "agents.dataplane", "trainer": "agents.trainer"}


@dataclass(frozen=True)
class StartUp:
    """All that the processes of a run are started from."""

    topology: Topology
    epoch: Epoch
    framing: Framing
    workload: Workload
    settings: RunSettings
    network: EmulatedNetwork
    state: RunState
    nursery: Nursery
    tag_key: str = field(default_factory=lambda: secrets.token_hex(KEY_BYTES))


@dataclass(frozen=True)
class Started:
    """The exchange areas by island id, and what the user should know about the processes."""

    areas: list[ExchangeArea]
    warnings: list[str]


@dataclass(frozen=True)
class MemoryBudget:
    """Slots of an edge: the memory of the plan, and the floor on top of it (packets are discrete, clocks jitter)."""

    budget_slots: int
    floor_slots: int
    slot_bytes: int

    @property
    def slots(self) -> int:
        return self.budget_slots + self.floor_slots


def memory_budget(topology: Topology, settings: RunSettings, framing: Framing) -> MemoryBudget:
    """The memory of every edge: M · rate_scale, plus max(5 ms of line rate, 32 slots)."""
    memory_gb = settings.memory_gb if settings.edge.memory_gb is None else settings.edge.memory_gb
    slot_bytes = framing.full_frame_bytes
    line_rate_gbps = max(island.access_down_gbps for island in topology.islands)
    floor_ns = settings.scale.emulated_ns(MEMORY_FLOOR_MS)
    floor_bytes = settings.scale.rate_bps(line_rate_gbps) * floor_ns / 8e9
    return MemoryBudget(
        budget_slots=settings.scale.size_bytes(memory_gb) // slot_bytes,
        floor_slots=max(math.ceil(floor_bytes / slot_bytes), MEMORY_FLOOR_SLOTS),
        slot_bytes=slot_bytes,
    )


def start_processes(fleet: Fleet, start_up: StartUp) -> Started:
    """Start an edge, a data plane and a trainer per island and set them up. Raises RunFailed."""
    names = [island.id for island in start_up.topology.islands]
    start_up.workload.prepare(_workload_setting(start_up))
    areas = [_make_area(start_up, name) for name in names]
    spawn = start_up.nursery.spawn
    for name in names:
        edge = start_up.network.pids[naming.edge_name(name)]
        start_edge = partial(spawn, "edge", MODULES["edge"], name, edge)
        # An edge holds nothing that lasts longer than a round, so a new one can stand in for it.
        fleet.add(start_edge(), start_again=start_edge)
        for number in range(1, start_up.settings.hosts_per_island + 1):
            host = start_up.network.pids[naming.host_name(name, number)]
            fleet.add(spawn("dataplane", MODULES["dataplane"], name, host, number))
        fleet.add(spawn("trainer", MODULES["trainer"], name, None))
    for role in MODULES:
        processes = fleet.of(role)
        fleet.send_each({process: _set_up(start_up, process) for process in processes}, "setup")
    everyone = [process for role in MODULES for process in fleet.of(role)]
    hellos = fleet.gather(everyone, "hello", TRAINING_TIMEOUT_S)
    warnings = []
    if not all(message["realtime"] for process, message in hellos.items() if process.role != "trainer"):
        warnings.append("real-time priority is not allowed here: hosts and edges may be late")
    return Started(areas, warnings)


def announce_epoch(fleet: Fleet, start_up: StartUp, epoch: Epoch) -> None:
    """Tell all processes about an epoch; on return the edges have joined every group. Raises RunFailed."""
    largest = max(len(clique) for phase in epoch.phases for clique in phase.cliques)
    tensors = start_up.workload.tensors(_workload_setting(start_up))
    bits = WORD_BITS // NUMBER_FORMATS[start_up.settings.number_format].lanes
    exponents = scale_exponents([tensor.range for tensor in tensors], largest, bits)
    everyone = [process for role in MODULES for process in fleet.of(role)]
    messages = {process: _epoch_message(epoch, process, exponents) for process in everyone}
    answers = fleet.ask(messages, "epoch", "epoch_ready", ANSWER_TIMEOUT_S * start_up.settings.scale.time_dilation)
    for process, answer in answers.items():
        if answer.get("refused"):
            raise RunFailed(f"{process.name} cannot take part in epoch {epoch.number}: {answer['refused']}")


def _workload_setting(start_up: StartUp) -> Setting:
    islands = len(start_up.topology.islands)
    lanes = NUMBER_FORMATS[start_up.settings.number_format].lanes
    return Setting(start_up.state.memory, start_up.settings.seed, islands, start_up.framing.values * lanes)


def _exchange_settings(settings: RunSettings) -> ExchangeSettings:
    number_format = NUMBER_FORMATS[settings.number_format]
    return ExchangeSettings(number_format.wire, number_format.lanes, settings.training.outer)


def _epoch_message(epoch: Epoch, process: Process, scale_exponents: list[int]) -> Mapping[str, Any]:
    if process.role == "edge":
        return epoch.edge_message(process.island)
    if process.role == "dataplane":
        return epoch.data_plane_message(process.island, process.host - 1)
    return epoch.trainer_message(process.island, scale_exponents)


def _set_up(start_up: StartUp, process: Process) -> dict[str, Any]:
    """The `setup` message of one process."""
    island, framing, settings = process.island, start_up.framing, start_up.settings
    island_ids = start_up.epoch.island_ids
    island_id = island_ids[island]
    hosts = range(1, settings.hosts_per_island + 1)
    common = {
        "island": island,
        "island_id": island_id,
        "job": zlib.crc32(start_up.state.run_id.encode()),
        "values_per_chunk": framing.values_per_chunk,
    }
    number_format = NUMBER_FORMATS[settings.number_format].wire
    tag_key = start_up.tag_key if settings.tags else ""
    area = {"exchange_area": str(_area_path(start_up, island)), "depth": EXCHANGE_DEPTH}
    if process.role == "edge":
        line_rate_gbps = start_up.topology.islands[island_id].access_down_gbps
        slots = memory_budget(start_up.topology, settings, framing).slots
        share = settings.edge.slots_per_source
        return common | {
            "shard_values": list(start_up.epoch.shard_values),
            "host_addresses": [naming.host_address(island_id, host) for host in hosts],
            "address": naming.edge_address(island_id),
            "interface": naming.EDGE_BRIDGE,
            "contributors": {
                naming.host_address(source, host, number): source
                for source in island_ids.values()
                for host in hosts
                for number in range(naming.MAX_HOST_ADDRESSES)
            },
            "slots": slots,
            "engine": settings.engine_in_use,
            "line_rate_bps": settings.scale.rate_bps(line_rate_gbps),
            "number_format": number_format,
            "collision_policy": settings.edge.collision,
            "late_policy": settings.edge.late,
            "deadline_policy": settings.edge.deadline,
            "slots_per_source": max(1, int(share * slots)) if share < 1 else None,
            "tag_key": tag_key,
            **_resend_fields(start_up, island_id),
            "engine_load_s": settings.scale.emulated_ns(settings.edge.engine_load_time_s * 1e3) / 1e9,
        }
    if process.role == "dataplane":
        return (
            common
            | area
            | {
                "islands": len(island_ids),
                "number_format": number_format,
                "tag_key": tag_key,
                "shard": process.host - 1,
                "shard_values": list(start_up.epoch.shard_values),
                "host_addresses": [naming.host_address(island_id, host) for host in hosts],
                "address": naming.host_address(island_id, process.host),
                "most_catch_up_ns": settings.scale.emulated_ns(MOST_CATCH_UP_MS),
                "interface": naming.HOST_TO_EDGE,
                "repair": _repair_fields(start_up, process, island_id),
            }
        )
    return (
        common
        | area
        | {
            "islands": list(island_ids),
            "workload": settings.workload,
            "workload_dir": str(start_up.state.memory),
            "seed": settings.seed,
            "values": framing.values,
            "exchange": _exchange_settings(settings).to_message(),
        }
    )


def _resend_fields(start_up: StartUp, island_id: int) -> dict[str, Any]:
    """What an edge is told of repair."""
    scale, recovery = start_up.settings.scale, start_up.settings.recovery
    round_trip_ms = 2 * start_up.topology.islands[island_id].access_one_way_delay_ms
    return {
        "resend_window_ns": scale.emulated_ns(recovery.resend_window_ms),
        "resend_bytes": scale.size_bytes(recovery.resend_memory_gb),
        "heartbeat_ns": scale.emulated_ns(HOLD_OFF_MS),
        "repair_interval_ns": scale.emulated_ns(max(REPAIR_INTERVAL_MS, round_trip_ms)),
    }


def _repair_fields(start_up: StartUp, process: Process, island_id: int) -> dict[str, Any]:
    """What a data plane is told of repair: field `repair` of its `setup`."""
    settings = start_up.settings
    uplink_bps = settings.scale.rate_bps(start_up.topology.islands[island_id].access_up_gbps)
    shards = start_up.epoch.shard_values
    others = [other for other in start_up.epoch.island_ids.values() if other != island_id]
    return {
        "edge_address": naming.edge_address(island_id),
        "peers": {naming.host_address(other, process.host): other for other in others},
        "fetch": settings.recovery.fetch,
        "hold_off_ns": settings.scale.emulated_ns(HOLD_OFF_MS),
        "uplink_bps": uplink_bps * shards[process.host - 1] / sum(shards),
    }


def _make_area(start_up: StartUp, island: str) -> ExchangeArea:
    framing = start_up.framing
    path = _area_path(start_up, island)
    return map_exchange_area(path, EXCHANGE_DEPTH, framing.values, framing.values_per_chunk, create=True)


def _area_path(start_up: StartUp, island: str) -> Path:
    return start_up.state.memory / f"{island}.exchange"
