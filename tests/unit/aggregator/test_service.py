"""Which engine works: passthrough while the one asked for loads, and after it has failed."""

import numpy as np
import pytest
from numpy.typing import NDArray

from aggregator import service as service_module
from aggregator.engine import EngineConfig, HeaderBatch, Verdict, empty_headers
from aggregator.engines import engine_names
from aggregator.engines.numpy_engine import NumpyEngine
from aggregator.service import EngineService

JOB, VALUES = 7, 3
CONFIG = EngineConfig(slots=4, values_per_chunk=VALUES, index_entries=64)


def submit(service: EngineService, round_number: int, source: int = 0, chunk: int = 0) -> Verdict:
    headers = empty_headers(1)
    headers.job[0], headers.round[0], headers.source[0], headers.chunk[0] = JOB, round_number, source, chunk
    headers.value_count[0] = VALUES
    assert service.submit(headers, np.ones((1, VALUES), np.int32), 1, 0)
    return Verdict(int(headers.verdict[0]))


@pytest.mark.parametrize("name", [name for name in ("native", "numpy") if name in engine_names()])
def test_engine_begins_with_the_first_round_after_it_has_loaded(name: str) -> None:
    service = EngineService(name, CONFIG, load_ns=100)
    service.set_clique(JOB, 0, 0, 0b11, 50, now_ns=1000)  # loading begins
    assert service.loading
    assert submit(service, 0) is Verdict.BYPASSED_COLLISION
    service.drop_clique(JOB, 0, 0)
    service.set_clique(JOB, 0, 0, 0b11, 50, now_ns=1099)
    assert service.loading
    service.set_clique(JOB, 0, 1, 0b11, 50, now_ns=1200)  # loaded, but round 0 began without it
    assert submit(service, 1) is Verdict.BYPASSED_COLLISION
    assert submit(service, 9) is Verdict.REFUSED_EPOCH
    service.drop_clique(JOB, 0, 0)
    service.drop_clique(JOB, 0, 1)
    service.set_clique(JOB, 0, 2, 0b11, 50, now_ns=1300)
    assert not service.loading
    assert not service.passing
    assert submit(service, 2) is Verdict.ADDED
    assert service.refusals()["epoch"] == 1
    service.close()


def test_engine_without_load_time_begins_at_once() -> None:
    service = EngineService("numpy", CONFIG, load_ns=0)
    service.set_clique(JOB, 0, 0, 0b11, 50, now_ns=0)
    assert submit(service, 0) is Verdict.ADDED


class Fails(NumpyEngine):
    """Takes one batch, fails with the second."""

    batches = 0

    def submit(self, headers: HeaderBatch, payloads: NDArray[np.int32], count: int, now_ns: int) -> int:
        self.batches += 1
        if self.batches == 2:
            raise RuntimeError("gone")
        return super().submit(headers, payloads, count, now_ns)


def test_failed_engine_gives_out_what_it_holds_then_its_batch_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "make_engine", lambda name: Fails())
    service = EngineService("fails", CONFIG, load_ns=0)
    service.set_clique(JOB, 0, 0, 0b11, 50, now_ns=0)
    assert submit(service, 0) is Verdict.ADDED
    headers = empty_headers(1)
    headers.job[0], headers.source[0], headers.value_count[0] = JOB, 1, VALUES
    assert not service.submit(headers, np.ones((1, VALUES), np.int32), 1, 1)
    assert service.failing
    assert service.failure == "RuntimeError: gone"
    out, payloads = empty_headers(4), np.zeros((4, VALUES), np.int32)
    assert service.poll(out, payloads, 1) == 1
    assert int(out.bitmap[0]) == 0b01
    assert service.poll(out, payloads, 1) == 0
    assert service.give_up_failed() == 1
    assert not service.failing
    assert submit(service, 0, source=1) is Verdict.BYPASSED_COLLISION


def test_passthrough_that_fails_is_an_error() -> None:
    service = EngineService("passthrough", CONFIG, load_ns=0)
    with pytest.raises(RuntimeError, match="broken"):
        service.fall_back(RuntimeError("broken"), 0, 0)
