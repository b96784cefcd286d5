"""How much the islands of a run trained, and how much of the time."""

import statistics
from collections.abc import Sequence
from typing import Any

from testbed.run.rounds import RoundRecord
from testbed.run.settings import TrainingSettings
from testbed.scale import Scale


def training_summary(records: Sequence[RoundRecord], settings: TrainingSettings, scale: Scale) -> dict[str, Any]:
    """Steps, and the share of the time in which the emulated accelerators computed; null if steps take no set time.

    Times are undilated; `compute_ms` is what a step really took here.
    """
    steps = sum(record.steps for record in records)
    elapsed_ms = scale.undilated_ms(records[-1].ended_ns - records[0].training_began_ns)
    compute_ms = [
        scale.undilated_ms(report["compute_ns"]) / report["steps"]
        for record in records
        for report in record.trained.values()
        if report["steps"]
    ]
    return {
        "overlap": int(settings.overlap),
        "step_ms": settings.step_ms,
        "steps": steps,
        "elapsed_ms": elapsed_ms,
        "steps_per_s": steps / elapsed_ms * 1e3,
        "busy_fraction": steps * settings.step_ms / elapsed_ms if settings.step_ms else None,
        "compute_ms": {"median": statistics.median(compute_ms), "max": max(compute_ms)} if compute_ms else None,
    }
