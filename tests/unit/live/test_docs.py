"""The example of docs/scenarios.md is the file that it names, and fits the built-in topology."""

from pathlib import Path

from testbed.links.delayline import DelayLine
from testbed.live.scenario import load_scenario
from testbed.network.emulated import emulated_links
from testbed.scale import Scale
from testbed.topology.load import load_topology

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLE = DOCS / "examples" / "cable-cut.toml"


class _AnyMachine(DelayLine):
    """Knows what delayline can have, whoever asks."""

    def refusal(self, _links: object) -> None:
        return None


def test_example_is_a_scenario_of_nine_city() -> None:
    links = emulated_links(load_topology("nine-city"), Scale(), seed=1)
    events = load_scenario(EXAMPLE, links, _AnyMachine(), Scale())
    assert [event.at_ms for event in events] == [2000, 5000, 8000, 10_500]


def test_page_shows_the_file() -> None:
    assert EXAMPLE.read_text(encoding="utf-8") in (DOCS / "scenarios.md").read_text(encoding="utf-8")
