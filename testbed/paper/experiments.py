"""The runs behind the comparison: which there are, and doing one of them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from subprocess import SubprocessError

from rich.console import Console

from scheduler.errors import SchedulerError, SolverError
from testbed.baselines.ring import run_ring
from testbed.errors import RunFailed, TestbedError
from testbed.links.interface import LinkError
from testbed.multicast.interface import MulticastError
from testbed.paper.outcome import Attempt, Outcome, Summary
from testbed.run.experiment import run_experiment
from testbed.run.settings import RunSettings, TrainingSettings
from testbed.scale import Scale

TROUBLES = (
    *(TestbedError, SchedulerError, SolverError, RunFailed),
    *(LinkError, MulticastError, OSError, SubprocessError),
)
"""What an experiment can come to grief by, and the others go on."""

MEMORIES_GB = (0.0, 32.0)
ABLATION = (("multicast", "edge"), ("multicast", "host"), ("unicast", "edge"), ("unicast", "host"))
SEARCH = "search"
OVERLAPPED = "overlapped training"
RING = "ring all-reduce, plain TCP"
GLOO_RING = "ring all-reduce, Gloo"
STEP_MS = TrainingSettings().step_ms
MOST_DEVIATION = 0.05

# Times are dilated twice as much at each: a machine that was too slow for an experiment has twice the time for it.
_ATTEMPTS = 4
_RING_ATTEMPTS = 2

# Rounds of a run: whole passes, some for a median; a pass of `pairs` has nine rounds.
_ROUNDS = {"all-to-all": 6, "triangles": 8, "pairs": 18, "regional": 6, SEARCH: 9}
_ABLATION_ROUNDS = 4
_OVERLAPPED_ROUNDS = 16
# Nine islands that train without a pause, and their network, are much for two cores.
_LIGHT_WORKLOAD = "characters"
_RING_STEPS = 14


@dataclass(frozen=True)
class Experiment:
    """One run. Its key says what it is for; at most so many `attempts` are made."""

    key: str
    settings: RunSettings
    do: Callable[[RunSettings, Console], Summary]
    attempts: int = _ATTEMPTS


def schedule_key(policy: str, memory_gb: float, multicast: str = "multicast", aggregation: str = "edge") -> str:
    return f"{policy}, {memory_gb:g} GB, {multicast}, {aggregation}"


def file_name(text: str) -> str:
    return "".join(character if character.isalnum() or character in "-." else "-" for character in text)


def experiments(scale: Scale, links: str, seed: int) -> list[Experiment]:
    """All runs; what they measure does not depend on the order."""
    untimed = TrainingSettings(step_ms=0.0)
    common = RunSettings(workload="synthetic", training=untimed, scale=scale, links=links, seed=seed)
    found = [
        Experiment(
            schedule_key(policy, memory_gb),
            replace(common, policy=policy, memory_gb=memory_gb, rounds=rounds),
            run_experiment,
        )
        for policy, rounds in _ROUNDS.items()
        for memory_gb in MEMORIES_GB
    ]
    found += [
        Experiment(
            schedule_key("all-to-all", 32.0, multicast, aggregation),
            replace(
                common,
                multicast="unicast" if multicast == "unicast" else "auto",
                aggregation=aggregation,
                rounds=_ABLATION_ROUNDS,
            ),
            run_experiment,
        )
        for multicast, aggregation in ABLATION
        if (multicast, aggregation) != ("multicast", "edge")  # all-to-all, above
    ]
    overlapped = TrainingSettings(overlap=True)
    settings = replace(
        common,
        policy="triangles",
        memory_gb=0.0,
        workload=_LIGHT_WORKLOAD if find_spec("torch") else "digits",
        training=overlapped,
        rounds=_OVERLAPPED_ROUNDS,
    )
    found.append(Experiment(OVERLAPPED, settings, run_experiment))
    for key, name in ((RING, "ring-tcp"), (GLOO_RING, "ring-gloo")):
        ring = replace(common, policy=name, training=TrainingSettings(), rounds=_RING_STEPS)
        found.append(Experiment(key, ring, run_ring, _RING_ATTEMPTS))
    return found


def carry_out(experiment: Experiment, directory: Path, progress: Console) -> Outcome:
    """Do one run. What cannot run is an outcome as well, and so is a run that has failed.

    It is done again, more slowly, if it has failed, or is further off its plan than allowed, unless this machine is
    known to have kept up in every round. The first attempt that is near enough counts, else the last with a result.
    """
    attempts: list[Attempt] = []
    outcome = Outcome(None)
    for number in range(experiment.attempts):
        settings = _slower(experiment, directory, number)
        dilation, began = settings.scale.time_dilation, time.monotonic()
        try:
            summary = experiment.do(settings, Console(quiet=True))
        except TROUBLES as error:
            if not attempts and isinstance(error, (TestbedError, SchedulerError)):
                progress.print(f"  {error}")
                return Outcome(None, str(error))
            trouble = str(error)
        else:
            attempt = _judged(summary, dilation, time.monotonic() - began, str(settings.out))
            note = f"with --time-dilation {dilation:g}" if number else ""
            outcome = Outcome(summary, note=note, attempts=(*attempts, attempt))
            attempts.append(attempt)
            progress.print(f"  {_in_short(summary)}{_strain(attempt)}")
            if attempt.untrusted_rounds == 0 or (attempt.deviation or 0.0) <= MOST_DEVIATION:
                return outcome
            continue
        attempts.append(Attempt(dilation, time.monotonic() - began, str(settings.out), trouble=trouble))
        progress.print(f"  failed: {trouble}")
    if outcome.summary is None:
        return Outcome(None, attempts[-1].trouble, failed=True, attempts=tuple(attempts))
    return replace(outcome, attempts=tuple(attempts))


def _slower(experiment: Experiment, directory: Path, attempt: int) -> RunSettings:
    """The experiment's settings for an attempt, counted from 0, with a run directory of its own."""
    scale = experiment.settings.scale
    name = file_name(experiment.key)
    return replace(
        experiment.settings,
        scale=replace(scale, time_dilation=scale.time_dilation * 2**attempt),
        out=directory / (f"{name}-{attempt + 1}" if attempt else name),
    )


def _judged(summary: Summary, dilation: float, seconds: float, run_dir: str) -> Attempt:
    measured = summary["measured"]
    if "exchange_ms" in measured:
        return Attempt(dilation, seconds, run_dir, _ring_deviation(summary), summary["steps"], None)
    deviation = abs(measured["round_time_ms"]["median"] / summary["predicted"]["round_time_ms"] - 1)
    busy = summary["training"]["busy_fraction"]
    if busy is not None:
        deviation = max(deviation, 1 - busy)
    return Attempt(dilation, seconds, run_dir, deviation, summary["rounds"], len(summary["untrusted_rounds"]))


def _ring_deviation(summary: Summary) -> float | None:
    """How far the ring that is planned, the one whose parts move on by themselves, is off."""
    if summary["baseline"] != "ring-tcp":
        return None
    mean_ms, planned_ms = summary["measured"]["exchange_ms"]["mean"], summary["predicted"]["pipelined_ms"]
    return abs(float(mean_ms) / float(planned_ms) - 1)


def _in_short(summary: Summary) -> str:
    measured = summary["measured"]
    if "exchange_ms" in measured:
        return f"{measured['exchange_ms']['mean']:.1f} ms an all-reduce, idle {measured['idle_fraction']:.1%}"
    text = f"{measured['round_time_ms']['median']:.1f} ms of {summary['predicted']['round_time_ms']:.1f}"
    busy = summary["training"]["busy_fraction"]
    return text if busy is None else f"{text}, islands trained {busy:.1%} of the time"


def _strain(attempt: Attempt) -> str:
    if not attempt.untrusted_rounds:
        return ""
    return (
        f" (time dilation {attempt.time_dilation:g}, {attempt.untrusted_rounds} of {attempt.rounds} rounds not "
        "trustworthy)"
    )
