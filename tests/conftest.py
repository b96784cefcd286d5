"""What all rings share: the rings that need root say so where there is none."""

import os
from pathlib import Path

import pytest

_ROOT_RINGS = ("netns", "vm")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in _ROOT_RINGS:
            item.add_marker(pytest.mark.skip(reason="needs root, to make network namespaces"))
