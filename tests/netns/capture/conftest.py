"""Tests of this folder tell their own runs from others, as those of the command line do."""

import pytest

from tests.netns.testbed.command import own_directories


@pytest.fixture(scope="session", autouse=True)
def _know_own_directories(tmp_path_factory: pytest.TempPathFactory) -> None:
    own_directories.add(tmp_path_factory.getbasetemp().resolve())
