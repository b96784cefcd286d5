"""What a run was asked to do."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agents.outer import OuterSettings
from aggregator.engines import default_engine
from testbed.live.settings import LinkSetting
from testbed.scale import Scale

REFERENCE_PAYLOAD_GB = 1.692  # fitted, together with the delays of nine-city
IGPS = ("none", "ospf", "ospf-no-bfd")
REPLANS = ("outages", "always", "never")
REPAIRS = ("none", "source")


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
class RecoverySettings:
    """How losses are repaired; docs/recovery.md explains.

    `repair`: of the WAN's losses, `none` or `source`. `resend_window_ms` and `resend_memory_gb` bound what each edge
    keeps of what it has sent to its hosts; without memory it keeps nothing, and the last hop is not repaired either.
    """

    repair: str = "none"
    resend_window_ms: float = 500.0
    resend_memory_gb: float = 8.0

    @property
    def fetch(self) -> bool:
        """Whether hosts fetch from the sources what they have not got."""
        return self.repair == "source"


@dataclass(frozen=True)
class PolicyChange:
    """Another policy takes over: from a round on, counted from 0, or at the first boundary after a time (undilated).

    The time counts from the start of the first round; either of the two is None. `memory_gb`: that the policy may
    count on, None: the run's.
    """

    policy: str
    round: int | None = None
    at_ms: float | None = None
    memory_gb: float | None = None


@dataclass(frozen=True)
class RunSettings:
    """Every setting of a run; the defaults are the main job. `out` is the run directory, None: one is made.

    `replan`: when the policy is planned again for the links as they are then: after outages, always (also when a core
    link's delay or rate is changed), or never. `capture`: where frames are recorded, by the names of choose_points, and
    `capture_bytes` how much of each (the headers take 106).
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
    policy_schedule: tuple[PolicyChange, ...] = ()
    replan: str = "outages"
    engine: str = field(default_factory=default_engine)
    number_format: str = "fixed"
    tags: bool = False
    edge: EdgeSettings = field(default_factory=EdgeSettings)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    link_settings: tuple[LinkSetting, ...] = ()
    scenario: Path | None = None
    capture: tuple[str, ...] = ()
    capture_bytes: int = 128
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


def settings_to_json(settings: RunSettings) -> dict[str, Any]:
    """The settings as JSON-ready values, paths as texts."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(settings).items()}


def settings_from_json(content: Mapping[str, Any]) -> RunSettings:
    """The inverse of `settings_to_json`."""
    return RunSettings(
        **{
            **content,
            "scale": Scale(**content["scale"]),
            "edge": EdgeSettings(**content["edge"]),
            "recovery": RecoverySettings(**content["recovery"]),
            "training": TrainingSettings(
                **{**content["training"], "outer": OuterSettings(**content["training"]["outer"])}
            ),
            "capture": tuple(content["capture"]),
            "policy_schedule": tuple(PolicyChange(**change) for change in content["policy_schedule"]),
            "link_settings": tuple(LinkSetting(**setting) for setting in content["link_settings"]),
            "scenario": None if content["scenario"] is None else Path(content["scenario"]),
            "out": None if content["out"] is None else Path(content["out"]),
        }
    )
