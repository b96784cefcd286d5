"""The C code under address and undefined-behaviour sanitizers, with a bounded number of random calls."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = [
    Path(__file__).parent / "sanitized" / "fuzz.c",
    *sorted((ROOT / "aggregator" / "engines" / "native").glob("*.c")),
    *sorted((ROOT / "aggregator" / "native").glob("*.c")),
    *sorted((ROOT / "aggregator" / "wire" / "native").glob("*.c")),
]
STEPS = 20_000


def build(target: Path, *sources: Path) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    flags = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([compiler, *flags, *map(str, sources), "-o", str(target)], check=True, timeout=120)
    return target


@pytest.fixture(scope="module")
def fuzz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("sanitized") / "fuzz", *SOURCES)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_error_and_no_wrong_sum(fuzz: Path, seed: int) -> None:
    done = subprocess.run([fuzz, str(seed), str(STEPS)], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = [int(number) for number in re.findall(r"(\d+) sums checked, right", done.stdout)]
    assert len(counts) == 4
    assert min(counts) > 1000
    requests = re.search(r"requests: (\d+) taken, (\d+) repairs, (\d+) gone, right", done.stdout)
    assert requests is not None
    assert min(int(count) for count in requests.groups()) > 100
    admitted = re.search(r"checks: (\d+) admitted", done.stdout)
    assert admitted is not None
    assert int(admitted[1]) > 1000


def test_every_way_of_computing_the_checksum_is_right(tmp_path: Path) -> None:
    program = build(tmp_path / "checksums", Path(__file__).parent / "sanitized" / "checksums.c")
    done = subprocess.run([program], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("portable\n")
