"""Summaries as runs of nine-city give them, for tests of what is made of them."""

from typing import Any

from testbed.topology.load import load_topology

NINE = load_topology("nine-city")


def summary_of(time_ms: float, lifetime: float | None, cliques: Any = ((("nyc", "chi"),),)) -> dict[str, Any]:
    """A run of two rounds that was planned to take 400 ms each, and took `time_ms`."""
    return {
        "predicted": {"round_time_ms": 400.0, "mean_divergence_lifetime_rounds": 1.8, "objective_ms": 920.0},
        "measured": {
            "round_time_ms": {"median": time_ms},
            "round_time_ratio": {"median": 1.0},
            "mean_divergence_lifetime_rounds": lifetime,
        },
        "training": {"steps_per_s": 4.9, "busy_fraction": None if time_ms != 400.0 else 0.98},
        "untrusted_rounds": [],
        "memory": {"measured_peak_gb": 0.43},
        "multicast": {"core_bytes": 30_000_000},
        "rounds": 2,
        "rate_scale": 1e-3,
        "cliques": cliques,
    }
