"""The C code under address and undefined-behaviour sanitizers, with a bounded number of random packets."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = [
    Path(__file__).parent / "sanitized" / "fuzz.c",
    *sorted((ROOT / "agents" / "native").glob("*.c")),
    *sorted((ROOT / "aggregator" / "wire" / "native").glob("*.c")),
]
STEPS = 60_000


@pytest.fixture(scope="module")
def fuzz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    target = tmp_path_factory.mktemp("sanitized") / "fuzz"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([compiler, *flags, *map(str, SOURCES), "-o", str(target)], check=True, timeout=120)
    return target


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_error_and_no_wrong_sum(fuzz: Path, seed: int) -> None:
    done = subprocess.run([fuzz, str(seed), str(STEPS)], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    packets = re.search(r"packets: (\d+) in turn, (\d+) told, (\d+) kinds counted, right", done.stdout)
    assert packets is not None
    assert min(int(packets[1]), int(packets[2])) > STEPS // 50
    taken = re.search(r"socket: (\d+) taken, (\d+) kinds counted, right", done.stdout)
    assert taken is not None
    assert int(taken[1]) > STEPS // 10
    # Every kind of count has been met.
    assert (int(packets[3]), int(taken[2])) == (9, 9)
