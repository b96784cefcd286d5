"""The plain ring: sums, whatever the number of members and however the payload divides; what breaks is an error."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from agents.ring_transports import TcpRing

BASE_PORT = 25_300


@pytest.mark.parametrize(("members", "values"), [(2, 7), (3, 3), (5, 1_000_003)])
def test_every_member_gets_the_sum_bit_for_bit_alike(members: int, values: int) -> None:
    port = BASE_PORT + members
    rings = [TcpRing(k, members, f"127.0.0.{k + 1}", f"127.0.0.{(k + 1) % members + 1}", port) for k in range(members)]
    generator = np.random.default_rng(members)
    sent = [generator.standard_normal(values).astype(np.float32) for _ in range(members)]
    payloads = [payload.copy() for payload in sent]

    def take_part(k: int) -> None:
        rings[k].join()
        for _ in range(2):
            rings[k].all_reduce(payloads[k])

    with ThreadPoolExecutor(members) as pool:
        list(pool.map(take_part, range(members)))
    # The second time every member contributed the sum.
    assert payloads[0] == pytest.approx(members * np.sum(sent, axis=0, dtype=np.float64), rel=1e-5, abs=1e-4)
    assert len({payload.tobytes() for payload in payloads}) == 1


def test_a_ring_that_was_not_joined_cannot_reduce() -> None:
    ring = TcpRing(0, 2, "127.0.0.1", "127.0.0.2", BASE_PORT)
    with pytest.raises(OSError, match="not joined"):
        ring.all_reduce(np.zeros(4, np.float32))
