import pytest

from testbed.paper.comparison import Planned, plan_all
from tests.unit.testbed.measured import NINE


@pytest.fixture(scope="session")
def planned() -> Planned:
    """What the published comparison plans, which takes seconds."""
    return plan_all(NINE)
