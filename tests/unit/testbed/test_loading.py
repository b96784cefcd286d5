"""What is loaded before it is needed is waited for by every user, and 25 times longer on an emulated processor."""

import subprocess
import sys


def loaded(*modules: str) -> set[str]:
    """Top-level packages that are there once these modules are."""
    script = f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_a_run_does_not_load_setuptools() -> None:
    packages = loaded("testbed.run.experiment")
    assert "mininet" in packages
    assert not packages & {"setuptools", "pkg_resources"}


def test_the_nursery_loads_nothing_of_the_network() -> None:
    packages = loaded("testbed.run.nursery", "aggregator.edge", "agents.dataplane", "agents.trainer")
    assert "numpy" in packages
    assert not packages & {"mininet", "pyroute2", "networkx", "rich", "torch"}
