from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netns.agents.host_rig import Host, two_namespaces


@pytest.fixture(scope="module")
def namespaces() -> Iterator[tuple[str, str]]:
    """The host's and the edge's namespace, with a veth between them."""
    with two_namespaces() as names:
        yield names


@pytest.fixture
def host(namespaces: tuple[str, str], tmp_path: Path) -> Iterator[Host]:
    running = Host(namespaces, tmp_path)
    yield running
    running.end()
