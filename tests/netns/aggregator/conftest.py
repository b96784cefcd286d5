from collections.abc import Iterator

import pytest
from edge_rig import Namespace, edge_network


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[Namespace, Namespace, Namespace]]:
    """Namespaces of the WAN side, the edge and the host of an island, shared by a module's tests."""
    with edge_network() as spaces:
        yield spaces
