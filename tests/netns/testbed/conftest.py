"""Tests of whole runs."""

import pytest

from tests.netns.testbed.command import own_directories


@pytest.fixture(scope="session", autouse=True)
def _know_own_directories(tmp_path_factory: pytest.TempPathFactory) -> None:
    own_directories.add(tmp_path_factory.getbasetemp().resolve())
