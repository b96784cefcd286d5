"""The runs behind the comparison: which there are, and doing them one after the other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from testbed.baselines.ring import run_ring
from testbed.errors import RunFailed, TestbedError
from testbed.run.experiment import run_experiment
from testbed.run.settings import RunSettings, TrainingSettings
from testbed.scale import Scale

MEMORIES_GB = (0.0, 32.0)
SEARCH = "search"
OVERLAPPED = "overlapped training"
RING = "ring all-reduce, plain TCP"
GLOO_RING = "ring all-reduce, Gloo"
MOST_DEVIATION = 0.05
_ATTEMPTS = 2

# Rounds of a run: whole passes, some for a median; a pass of `pairs` has nine rounds.
_ROUNDS = {"all-to-all": 6, "triangles": 8, "pairs": 18, "regional": 6, SEARCH: 9}
_OVERLAPPED_ROUNDS = 16
# Nine islands that train without a pause, and their network, are much for two cores.
_LIGHT_WORKLOAD = "characters"
_RING_STEPS = 10

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Experiment:
    """One run. Its key says what it is for."""

    key: str
    settings: RunSettings
    do: Callable[[RunSettings, Console], Summary]


@dataclass(frozen=True)
class Outcome:
    """What a run gave, or why there is none."""

    summary: Summary | None
    trouble: str = ""

    def measured(self, *path: str) -> Any:
        """A figure of the summary's `measured`; None without a summary."""
        value: Any = None if self.summary is None else self.summary["measured"]
        for name in path:
            value = None if value is None else value[name]
        return value


def schedule_key(policy: str, memory_gb: float, multicast: str = "multicast", aggregation: str = "edge") -> str:
    return f"{policy}, {memory_gb:g} GB, {multicast}, {aggregation}"


def experiments(scale: Scale, links: str, seed: int) -> list[Experiment]:
    """All runs, the shortest rounds' times first: what they measure does not depend on the order."""
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
            schedule_key("all-to-all", 32.0, "unicast" if multicast == "unicast" else "multicast", aggregation),
            replace(common, multicast=multicast, aggregation=aggregation, rounds=4),
            run_experiment,
        )
        for multicast, aggregation in (("auto", "host"), ("unicast", "edge"), ("unicast", "host"))
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
        found.append(Experiment(key, ring, run_ring))
    return found


def carry_out(experiment: Experiment, directory: Path, progress: Console) -> Outcome:
    """Do one run, again if the machine could not keep up with it; what cannot run is an outcome as well."""
    outcome = Outcome(None)
    name = "".join(character if character.isalnum() or character in "-." else "-" for character in experiment.key)
    for attempt in range(_ATTEMPTS):
        out = directory / (name if attempt == 0 else f"{name}-again")
        try:
            summary = experiment.do(replace(experiment.settings, out=out), Console(quiet=True))
        except TestbedError as error:
            progress.print(f"{experiment.key}: {error}")
            return Outcome(None, str(error))
        except RunFailed as error:
            progress.print(f"{experiment.key}: {error}")
            outcome = Outcome(outcome.summary, str(error))
            continue
        progress.print(f"{experiment.key}: {_in_short(summary)}")
        if outcome.summary is None or _lateness(summary) < _lateness(outcome.summary):
            outcome = Outcome(summary)
        if _lateness(summary) <= MOST_DEVIATION:
            break
    return outcome


def _lateness(summary: Summary) -> float:
    """How far the median round is off its plan, as a share."""
    ratio = summary["measured"].get("round_time_ratio")
    return 0.0 if ratio is None else abs(float(ratio["median"]) - 1)


def _in_short(summary: Summary) -> str:
    measured = summary["measured"]
    if "exchange_ms" in measured:
        return f"{measured['exchange_ms']['mean']:.1f} ms an all-reduce, idle {measured['idle_fraction']:.1%}"
    text = f"{measured['round_time_ms']['median']:.1f} ms of {summary['predicted']['round_time_ms']:.1f}"
    busy = summary["training"]["busy_fraction"]
    return text if busy is None else f"{text}, islands trained {busy:.1%} of the time"
