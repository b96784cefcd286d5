"""The training part of the comparison: every schedule and baseline on every workload, from one seed."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from rich.console import Console

from agents.workloads import load_workload
from scheduler.topology import Topology
from testbed.baselines.plain import PlainRun
from testbed.paper.agreement import ROUNDS, check_agreement
from testbed.paper.curves import Curve, plain_curve, plain_training, ring_curve, ring_steps
from testbed.paper.experiments import STEP_MS, TROUBLES, file_name
from testbed.paper.methods import RING_METHOD, Method, methods
from testbed.paper.record import Record
from testbed.run.frames import frame_payload
from testbed.run.settings import REFERENCE_PAYLOAD_GB, RunSettings, TrainingSettings

WORKLOADS = ("digits", "characters")
_AT_ONCE = 2
# Whether numbers agree is no question of time, and nine islands that train beside their network are much for two cores.
_UNHURRIED = 2.0
_LOOK_S = 0.2
_QUIET = Console(quiet=True)


def train_all(topology: Topology, common: RunSettings, record: Record, progress: Console) -> None:
    """Train with every method that has been measured; the record gets what comes of it, and what has failed.

    `common`: what all runs share. First come short runs over the network, then the curves.
    """
    record.methods = methods(topology, record.outcomes)
    for workload in WORKLOADS:
        try:
            load_workload(workload)
        except ValueError as error:
            record.refuse(f"training {workload}", str(error))
            progress.print(f"training {workload}: {error}")
            continue
        of_workload = replace(common, workload=workload)
        networked = [method for method in record.methods if method.policy is not None]
        for method in networked:
            do = partial(_over_network, topology, of_workload, record, method)
            _attempt(f"training {workload}, {method.name}, over the network", do, time.monotonic(), record, progress)
        _draw(topology, of_workload, record, progress)


def _over_network(topology: Topology, common: RunSettings, record: Record, method: Method) -> str:
    """Train the ring's curve, or the first rounds of another method's; returns what came of it."""
    out = record.directory / file_name(f"{common.workload}-{method.name}")
    if method.name == RING_METHOD:
        settings = replace(
            common,
            policy=method.policy or "",
            training=TrainingSettings(step_ms=STEP_MS),
            rounds=ring_steps(method),
            out=out,
        )
        return _add(record, ring_curve(method, settings, _QUIET))
    settings = replace(
        common,
        policy=method.policy or "",
        memory_gb=method.memory_gb,
        training=TrainingSettings(overlap=method.overlap, step_ms=STEP_MS),
        scale=replace(common.scale, time_dilation=common.scale.time_dilation * _UNHURRIED),
        multicast="direct",
        rounds=ROUNDS,
        out=out,
    )
    framing = frame_payload(settings.scale.size_bytes(REFERENCE_PAYLOAD_GB))
    found = check_agreement(method, settings, framing, topology.island_ids, _QUIET)
    record.agreement(found)
    equal = "the plain process's parameters, bit for bit" if found.equal else "OTHER PARAMETERS than the plain process"
    return f"{found.rounds} rounds gave {equal}"


def _draw(topology: Topology, common: RunSettings, record: Record, progress: Console) -> None:
    """The curves of what is trained in plain processes, two at a time."""
    framing = frame_payload(common.scale.size_bytes(REFERENCE_PAYLOAD_GB))
    waiting = [method for method in record.methods if method.name != RING_METHOD]
    with ExitStack() as undo:
        running: dict[str, tuple[Method, float, PlainRun]] = {}
        while waiting or running:
            while waiting and len(running) < _AT_ONCE:
                method = waiting.pop(0)
                training = plain_training(len(topology.islands), framing, method, common.workload, common.seed)
                running[method.name] = method, time.monotonic(), undo.enter_context(PlainRun(training))
            time.sleep(_LOOK_S)
            for name, (method, began, run) in list(running.items()):
                if run.is_over:
                    del running[name]
                    do = partial(_finish, record, method, common.workload, run)
                    _attempt(f"training {common.workload}, {name}", do, began, record, progress)


def _finish(record: Record, method: Method, workload: str, run: PlainRun) -> str:
    return _add(record, plain_curve(method, workload, run.outcome()))


def _attempt(name: str, do: Callable[[], str], began: float, record: Record, progress: Console) -> None:
    """Do it, and say what came of it, how long after it `began`."""
    try:
        said = do()
    except TROUBLES as error:
        record.fail(name, str(error))
        said = f"failed: {error}"
    progress.print(f"{name}: {said} ({time.monotonic() - began:.0f} s)")


def _add(record: Record, curve: Curve) -> str:
    record.curve(curve)
    end = curve.points[-1]
    return f"loss {end['worst_loss']:.3f} after {end['steps']:.0f} steps"
