"""What a run was asked to do."""

from dataclasses import dataclass, field
from pathlib import Path

from aggregator.engines import default_engine
from testbed.scale import Scale

REFERENCE_PAYLOAD_GB = 1.692  # fitted, together with the delays of nine-city


@dataclass(frozen=True)
class RunSettings:
    """Every setting of a run; the defaults are the main job. `out` is the run directory, None: one is made.

    `policy_schedule`: from which rounds on other policies take over.
    """

    topology: str = "nine-city"
    policy: str = "all-to-all"
    memory_gb: float = 32.0
    payload_gb: float = REFERENCE_PAYLOAD_GB
    rounds: int = 20
    workload: str = "digits"
    scale: Scale = field(default_factory=Scale)
    links: str = "auto"
    multicast: str = "auto"
    aggregation: str = "edge"
    trees: str = "shortest"
    hosts_per_island: int = 1
    policy_schedule: tuple[tuple[int, str], ...] = ()
    engine: str = field(default_factory=default_engine)
    seed: int = 1
    out: Path | None = None
    strict: bool = False

    @property
    def copies(self) -> bool:
        """Whether each receiver gets a copy of its own."""
        return self.multicast == "unicast"

    @property
    def engine_in_use(self) -> str:
        """With host aggregation the edges sum nothing."""
        return "passthrough" if self.aggregation == "host" else self.engine
