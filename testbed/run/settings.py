"""What a run was asked to do."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aggregator.engines import default_engine
from testbed.live.settings import LinkSetting
from testbed.scale import Scale

REFERENCE_PAYLOAD_GB = 1.692  # fitted, together with the delays of nine-city
REPLANS = ("outages", "always", "never")
NUMBER_FORMATS = {"fixed": 0, "f32": 1}  # as in docs/wire-format.md


@dataclass(frozen=True)
class EdgeSettings:
    """What the aggregators do; docs/aggregator.md explains the policies.

    `memory_gb`: memory that they really have; None: what the plan counts on. `slots_per_source`: share of the slots
    that the contributions of one island may take. `engine_load_time_s`: how long the engine loads before it begins.
    """

    memory_gb: float | None = None
    collision: str = "bypass-new"
    late: str = "bypass"
    deadline: str = "fixed"
    slots_per_source: float = 1.0
    engine_load_time_s: float = 0.0


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
    link's delay or rate is changed), or never.
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
    policy_schedule: tuple[PolicyChange, ...] = ()
    replan: str = "outages"
    engine: str = field(default_factory=default_engine)
    number_format: str = "fixed"
    tags: bool = False
    edge: EdgeSettings = field(default_factory=EdgeSettings)
    link_settings: tuple[LinkSetting, ...] = ()
    scenario: Path | None = None
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
            "policy_schedule": tuple(PolicyChange(**change) for change in content["policy_schedule"]),
            "link_settings": tuple(LinkSetting(**setting) for setting in content["link_settings"]),
            "scenario": None if content["scenario"] is None else Path(content["scenario"]),
            "out": None if content["out"] is None else Path(content["out"]),
        }
    )
