"""What a run was asked to do."""

from dataclasses import dataclass, field
from pathlib import Path

from agents.outer import OuterSettings
from aggregator.engines import default_engine
from testbed.live.settings import LinkSetting
from testbed.scale import Scale

REFERENCE_PAYLOAD_GB = 1.692  # fitted, together with the delays of nine-city


@dataclass(frozen=True)
class NumberFormat:
    """`wire`: its number in packets (docs/wire-format.md); `lanes`: how many values share a 32-bit word."""

    wire: int
    lanes: int = 1


NUMBER_FORMATS = {
    "fixed": NumberFormat(0),
    "fixed16": NumberFormat(0, lanes=2),
    "fixed8": NumberFormat(0, lanes=4),
    "f32": NumberFormat(1),
}


@dataclass(frozen=True)
class TrainingSettings:
    """How islands train between and during exchanges; docs/workloads.md explains it.

    `overlap`: train while a round is under way. `step_ms`: how long a step takes on the emulated accelerator; 0: as
    long as it takes here. `local_steps`: steps that go with each round; None: with overlap as many as fit, else 1.
    """

    overlap: bool = False
    step_ms: float = 200.0
    local_steps: int | None = None
    outer: OuterSettings = field(default_factory=OuterSettings)

    @property
    def steps_per_round(self) -> int | None:
        """The same number in every round, or None: as many as its time holds."""
        fills = self.overlap and self.step_ms > 0
        return 1 if self.local_steps is None and not fills else self.local_steps


@dataclass(frozen=True)
class EdgeSettings:
    """What the aggregators do; docs/aggregator.md explains the policies.

    `memory_gb`: memory that they really have; None: what the plan counts on. `slots_per_source`: share of the slots
    that the contributions of one island may take. `engine_load_time_s`: how long it loads, from its first round on.
    """

    memory_gb: float | None = None
    collision: str = "bypass-new"
    late: str = "bypass"
    deadline: str = "fixed"
    slots_per_source: float = 1.0
    engine_load_time_s: float = 0.0


@dataclass(frozen=True)
class RunSettings:
    """Every setting of a run; the defaults are the main job. `out` is the run directory, None: one is made.

    `policy_schedule`: from which rounds on other policies take over. `capture`: where frames are recorded, by the names
    of choose_points, and `capture_bytes` how much of each (the headers take 106).
    """

    topology: str = "nine-city"
    policy: str = "all-to-all"
    memory_gb: float = 32.0
    payload_gb: float = REFERENCE_PAYLOAD_GB
    rounds: int = 20
    workload: str = "digits"
    training: TrainingSettings = field(default_factory=TrainingSettings)
    scale: Scale = field(default_factory=Scale)
    links: str = "auto"
    multicast: str = "auto"
    igp: str = "none"
    aggregation: str = "edge"
    trees: str = "shortest"
    hosts_per_island: int = 1
    policy_schedule: tuple[tuple[int, str], ...] = ()
    engine: str = field(default_factory=default_engine)
    number_format: str = "fixed"
    tags: bool = False
    edge: EdgeSettings = field(default_factory=EdgeSettings)
    link_settings: tuple[LinkSetting, ...] = ()
    scenario: Path | None = None
    capture: tuple[str, ...] = ()
    capture_bytes: int = 128
    seed: int = 1
    out: Path | None = None
    strict: bool = False

    def policies_from(self, round_number: int) -> dict[int, str]:
        """The policy of a round and those that follow, by their first rounds, as the run was to go."""
        policies = {0: self.policy, **dict(self.policy_schedule)}
        now = max(first for first in policies if first <= round_number)
        return {first: policy for first, policy in policies.items() if first >= now}

    @property
    def copies(self) -> bool:
        """Whether each receiver gets a copy of its own."""
        return self.multicast == "unicast"

    @property
    def engine_in_use(self) -> str:
        """With host aggregation the edges sum nothing."""
        return "passthrough" if self.aggregation == "host" else self.engine
