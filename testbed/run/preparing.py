"""From the settings of a run to everything that is decided before the machine is touched."""

from dataclasses import dataclass, replace
from pathlib import Path

from agents.fixed_point import largest_integer
from agents.lanes import WORD_BITS
from agents.workloads import load_workload
from agents.workloads.interface import Setting, Workload, value_count
from aggregator.engine import EngineError
from aggregator.engines import make_engine
from scheduler.plan import Plan
from scheduler.topology import Topology
from testbed.capture.points import CapturePoint, capture_points, choose_points
from testbed.capture.recorder.recording import check_recorder
from testbed.errors import TestbedError
from testbed.links.interface import Link, LinkKind
from testbed.links.kinds import choose_link_kind
from testbed.live.scenario import Event, load_scenario
from testbed.live.settings import applied
from testbed.multicast.groups import Tree
from testbed.multicast.interface import MulticastPlane
from testbed.multicast.planes import check_plane_name, choose_plane, make_ospf, plane_refusal
from testbed.network import naming
from testbed.network.emulated import emulated_links
from testbed.run.frames import Framing, frame_payload
from testbed.run.machine import check_machine
from testbed.run.planning import plan_policy
from testbed.run.program import Epoch, make_epoch
from testbed.run.rundir import check_run_directory
from testbed.run.settings import NUMBER_FORMATS, PolicyChange, RunSettings
from testbed.topology.load import load_topology


@dataclass(frozen=True)
class Prepared:
    """Everything decided before the machine is touched. `changes`: those of the schedule, and their plans."""

    settings: RunSettings
    topology: Topology
    plan: Plan
    changes: tuple[tuple[PolicyChange, Plan], ...]
    framing: Framing
    epoch: Epoch
    workload: Workload
    links: tuple[Link, ...]
    link_kind: LinkKind
    plane: MulticastPlane
    scenario: tuple[Event, ...]
    capture_points: tuple[CapturePoint, ...]
    """Every place where frames can be recorded."""

    def make_epoch(self, number: int, plan: Plan, left: Topology, live: list[Tree], used_groups: set[str]) -> Epoch:
        """A further epoch of the run, beside the trees that are live, on groups that were not used if possible.

        Raises TestbedError if the run's plane cannot carry it on what is `left` of the network.
        """
        settings, scale = self.settings, self.settings.scale
        hosts, copies, fetch = settings.hosts_per_island, settings.copies, settings.recovery.fetch
        epoch = make_epoch(number, plan, self.topology, self.framing, scale, hosts, copies, live, used_groups, fetch)
        # Where routers find the ways, those of trees from before a link changed are the new ones by now.
        beside = [] if self.plane.finds_ways else live
        refusal = plane_refusal(self.plane, left, [*beside, *epoch.distinct_trees()])
        if refusal is not None:
            raise TestbedError(f"multicast plane {self.plane.name}: {refusal}")
        return epoch


def prepare(settings: RunSettings) -> Prepared:
    """Check the settings against everything there is. Raises TestbedError or SchedulerError; changes nothing."""
    topology = load_topology(settings.topology)
    naming.check_names(topology)
    try:
        workload = load_workload(settings.workload)
    except ValueError as error:
        raise TestbedError(f"--workload: {error}") from error
    _check_engine(settings)
    if settings.training.outer.momentum >= 1:
        raise TestbedError(f"--outer-momentum {settings.training.outer.momentum:g}: it must be below 1")
    check_run_directory(settings.out)
    check_plane_name(settings.multicast)
    plan = plan_policy(settings, topology, settings.policy)
    changes = tuple((change, _plan_change(settings, topology, change)) for change in settings.policy_schedule)
    framing = frame_payload(settings.scale.size_bytes(settings.payload_gb))
    _check_workload(workload, settings, len(topology.islands), framing)
    hosts, copies = settings.hosts_per_island, settings.copies
    naming.check_hosts(hosts)
    epoch = make_epoch(0, plan, topology, framing, settings.scale, hosts, copies, fetch=settings.recovery.fetch)
    built = emulated_links(topology, settings.scale, settings.seed, hosts)
    links = applied(built, settings.link_settings, settings.scale)
    check_machine(len(naming.node_names(topology, hosts)))
    link_kind = choose_link_kind(settings.links, links)
    points = capture_points(topology, links, hosts)
    if settings.capture:
        choose_points(points, settings.capture)
        check_recorder()
    scenario = load_scenario(settings.scenario, links, link_kind, settings.scale) if settings.scenario else ()
    # Two epochs are live at once while one follows the other.
    trees, live = [epoch.distinct_trees()], epoch.distinct_trees()
    for _, later in changes:
        new = make_epoch(0, later, topology, framing, settings.scale, hosts, copies, live).distinct_trees()
        trees.append([*live, *new])
        live = new
    plane = choose_plane(settings.multicast, topology, trees, make_ospf(settings.igp, settings.scale.time_dilation))
    return Prepared(
        settings, topology, plan, changes, framing, epoch, workload, links, link_kind, plane, scenario, points
    )


def _check_workload(workload: Workload, settings: RunSettings, islands: int, framing: Framing) -> None:
    """Raise TestbedError unless its values fit the payload, and the number format the sums of all islands."""
    lanes = NUMBER_FORMATS[settings.number_format].lanes
    try:
        largest_integer(islands, WORD_BITS // lanes)
        needed = value_count(workload.tensors(Setting(Path(), settings.seed, islands, framing.values * lanes)))
    except ValueError as error:
        raise TestbedError(f"--number-format {settings.number_format}: {error}") from error
    if needed > framing.values * lanes:
        raise TestbedError(
            f"workload {settings.workload} has {needed} values, but a payload of {settings.payload_gb:g} GB at rate "
            f"scale {settings.scale.rate_scale:g} carries {framing.values * lanes}; raise --payload-gb or --rate-scale"
        )


def _check_engine(settings: RunSettings) -> None:
    """Raise TestbedError unless the engine is there, and the one in use can do what is asked."""
    try:
        make_engine(settings.engine)
        capabilities = make_engine(settings.engine_in_use).capabilities()
    except EngineError as error:
        raise TestbedError(f"--engine: {error}") from error
    if settings.edge.collision not in capabilities.collision_policies:
        known = ", ".join(capabilities.collision_policies)
        raise TestbedError(f"--collision {settings.edge.collision}: engine {settings.engine_in_use} has only {known}")
    if NUMBER_FORMATS[settings.number_format].wire not in capabilities.number_formats:
        raise TestbedError(f"--number-format {settings.number_format}: engine {settings.engine_in_use} cannot add it")
    if settings.edge.slots_per_source > 1:
        raise TestbedError(f"--slots-per-source {settings.edge.slots_per_source:g}: a share is at most 1")


def _plan_change(settings: RunSettings, topology: Topology, change: PolicyChange) -> Plan:
    if change.memory_gb is None:
        return plan_policy(settings, topology, change.policy)
    if change.memory_gb > settings.memory_gb:
        raise TestbedError(
            f"--policy-schedule: {change.policy} shall have {change.memory_gb:g} GB, but the aggregators have "
            f"{settings.memory_gb:g}; raise --memory-gb"
        )
    return plan_policy(replace(settings, memory_gb=change.memory_gb), topology, change.policy)
