"""Each module of the scheduler can be imported first, and none imports the other packages."""

import subprocess
import sys
from pathlib import Path

import scheduler

ROOT = Path(scheduler.__file__).parent


def test_any_module_comes_first_and_alone() -> None:
    modules = sorted(
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in ROOT.rglob("*.py")
    )
    # One process: everything of the scheduler is forgotten before each import.
    code = f"""
import importlib, sys
for name in {modules!r}:
    for known in [known for known in sys.modules if known.split(".")[0] == "scheduler"]:
        del sys.modules[known]
    importlib.import_module(name)
others = [name for name in sys.modules if name.split(".")[0] in ("testbed", "agents", "aggregator")]
assert not others, others
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT.parent, timeout=300, check=True)
