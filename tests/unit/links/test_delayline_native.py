"""The pure parts of the delayline program, compiled with address and undefined-behaviour sanitisers."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "testbed" / "links" / "delayline"
TESTS = Path(__file__).parent / "native"
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"]
SANITISERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.mark.parametrize("part", sorted(path.stem.removeprefix("test_") for path in TESTS.glob("test_*.c")))
def test_native_part(part: str, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    program = tmp_path / part
    sources = [TESTS / f"test_{part}.c", SOURCES / f"{part}.c"]
    subprocess.run(
        [compiler, *FLAGS, *SANITISERS, f"-I{SOURCES}", f"-I{TESTS}", *map(str, sources), "-o", str(program), "-lm"],
        check=True,
        timeout=60,
    )
    ran = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False, env={**os.environ})
    assert ran.returncode == 0, ran.stderr
