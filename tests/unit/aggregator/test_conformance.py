"""The conformance kit: engines agree on traces, the traces hold what they should, and a wrong engine is found out."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from aggregator.conformance.runner import BATCH_SIZES, first_difference, observe
from aggregator.conformance.traces import TRACES, Announce, Packets, Trace, steps
from aggregator.engine import HeaderBatch, Stats
from aggregator.engines import engine_names, make_engine
from aggregator.engines.numpy_engine import NumpyEngine

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs" / "examples" / "engine"


def by_name(name: str) -> Trace:
    return next(trace for trace in TRACES if trace.name == name)


@pytest.mark.skipif("native" not in engine_names(), reason="engine native is not built here")
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
def test_native_does_what_the_reference_does(trace: Trace, batch_size: int) -> None:
    assert first_difference(make_engine("native"), NumpyEngine(), trace, batch_size) is None


def totals(trace: Trace) -> Stats:
    class Kept(NumpyEngine):
        def close(self) -> None:
            self.kept = self.stats()

    engine = Kept()
    assert sum(1 for _ in observe(engine, trace, 64)) > 0
    return engine.kept


def test_traces_hold_what_they_promise() -> None:
    kept = {trace.name: totals(trace).counters for trace in TRACES if trace.name != "jumbo"}
    assert sum(counters.contributions for counters in kept.values()) > 200_000
    for counters in kept.values():
        assert min(counters.complete, counters.timeout, counters.duplicate, counters.late) > 0
        assert min(counters.refused_epoch, counters.refused_source, counters.refused_length) > 0
    assert kept["short-pool"].bypassed_pool > 500
    assert kept["short-index"].bypassed_index > 500
    assert kept["evict-old"].collision > 500
    assert kept["capped"].bypassed_source > 500
    wrap = list(steps(by_name("wrap")))
    rounds = [step.round for step in wrap if isinstance(step, Announce)]
    assert {0, 2**32 - 1} <= set(rounds)
    assert len({step.epoch for step in wrap if isinstance(step, Announce)}) == 2
    chunks = {int(chunk) for step in wrap if isinstance(step, Packets) for chunk in step.chunk}
    assert {0, 2**32 - 1} <= chunks


def test_trace_is_in_order_of_time() -> None:
    last = -1
    for step in steps(by_name("lossy")):
        if isinstance(step, Packets):
            times = step.now_ns.tolist()
            assert times == sorted(times)
            assert not times or times[0] >= last
            last = times[-1] if times else last


class AddsDuplicates(NumpyEngine):
    """Wrong: forgets who contributed as soon as anything was refused as a duplicate."""

    def submit(self, headers: HeaderBatch, payloads: NDArray[np.int32], count: int, now_ns: int) -> int:
        accepted = super().submit(headers, payloads, count, now_ns)
        for entry in self._occupants.values():
            entry.seen &= ~1
        return accepted


def test_wrong_engine_is_found_out() -> None:
    difference = first_difference(AddsDuplicates(), NumpyEngine(), by_name("lossy"), 64)
    assert difference is not None
    assert "reference" in difference


def load_example() -> type[NumpyEngine]:
    spec = importlib.util.spec_from_file_location("halves_engine", EXAMPLES / "halves_engine.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    engine: type[NumpyEngine] = module.HalvesEngine
    return engine


def test_example_engine_in_python_conforms() -> None:
    for name in ("lossy", "short-pool"):
        assert first_difference(load_example()(), NumpyEngine(), by_name(name), 7) is None


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_example_engine_in_c_conforms(tmp_path: Path) -> None:
    library = tmp_path / "halves.so"
    rules = set((ROOT / "aggregator/engines/native").glob("*.c")) - {ROOT / "aggregator/engines/native/sum.c"}
    sources = [*rules, EXAMPLES / "halves_sum.c"]
    command = ["gcc", "-std=c11", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*command, "-o", library, *sources], check=True, timeout=60)
    for name in ("lossy", "evict-old", "f32"):
        assert first_difference(make_engine(str(library)), NumpyEngine(), by_name(name), 7) is None


def test_command_says_same_and_exits_0_or_names_what_is_wrong() -> None:
    command = [sys.executable, "-m", "aggregator.conformance", "--engine"]
    done = subprocess.run(
        [*command, "numpy", "--trace", "jumbo"], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "jumbo, batches of 1: same")
    done = subprocess.run([*command, "./none.so"], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "engine none.so: not an engine library" in done.stderr
    assert done.stderr.count("\n") == 1
