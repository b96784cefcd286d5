"""What an edge makes of requests for repair: in Python and in C the same, request by request."""

import ctypes
import random
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from aggregator.receiver import native_library, network_order
from aggregator.repair import COUNTS, REASONS, Repairs
from aggregator.results import ResendSettings, ResultStreams
from aggregator.wire.packet import HEADER_BYTES, Header, Kind, write_header, write_packet

HOSTS, STRANGER = ["127.0.0.1", "127.0.0.2"], "127.0.0.3"
JOB, ISLAND, KEY = 7, 3, bytes(range(16))
MS = 1_000_000
INTERVAL_NS = 5 * MS
LIBRARY = native_library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the C loop is not built here")


@pytest.fixture(params=[None, KEY])
def both(request: pytest.FixtureRequest) -> Iterator[tuple[Repairs, Repairs]]:
    """Two edges that send to nobody, with the same numbers in their rings; the second is for C."""
    edges = []
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
        for _ in range(2):
            resend = ResendSettings(300 * MS, 30 * 192, 10 * MS, INTERVAL_NS, first_number=2**32 - 20)
            results = ResultStreams(sender, HOSTS, ISLAND, 4, 1e9, key=request.param, resend=resend)
            results.state.stream = 99
            edges.append(Repairs(sender, results, JOB, INTERVAL_NS, request.param))
        yield edges[0], edges[1]


def request_of(rng: random.Random, repairs: Repairs) -> tuple[bytes, str]:
    """A request, most often a good one; with one thing wrong otherwise."""
    shard = int(rng.random() < 0.1)
    bitmap = 1 | rng.getrandbits(64) & rng.getrandbits(64)
    number = (repairs._results.streams[shard].next - rng.randrange(60)) % 2**32
    header = Header(Kind.NACK, ISLAND, JOB, 1, 2, shard, 0, 0, number, bitmap.bit_count(), bitmap, stream=99)
    source, key = HOSTS[shard], repairs._key
    match rng.randrange(30):
        case 0:
            header.job += 1
        case 1:
            header.source += 1
        case 2:
            header.shard = rng.choice([1 - shard, 2, 65535])
        case 3:
            header.stream += 1
        case 4:
            header.bitmap ^= 1
        case 5:
            header.kind = rng.choice(list(Kind))
        case 6:
            source = STRANGER
        case 7:
            key = bytes(16)
        case 8:
            header.value_count = 1
    out = memoryview(bytearray(HEADER_BYTES + 4))
    size = write_header(out, header, key)
    damage = rng.randrange(40)
    if damage < 3:
        out[rng.randrange(size)] ^= 1 << rng.randrange(8)
    return bytes(out[: size - (damage == 3)]), source


@pytest.mark.parametrize("seed", range(5))
def test_python_and_c_agree(both: tuple[Repairs, Repairs], seed: int) -> None:
    assert LIBRARY is not None
    rng = random.Random(seed)
    python, native = both
    results, repairs = ctypes.addressof(native._results.state), ctypes.addressof(native.state)
    contribution = memoryview(bytearray(HEADER_BYTES + 16))
    now_ns = 0
    seen = set()
    for step in range(1500):
        now_ns += rng.randrange(4 * MS) if step % 200 else 100 * MS
        shard = rng.randrange(2)
        header = Header(Kind.CONTRIBUTION, 1, JOB, 2, step, shard, 0, 4, bitmap=2)
        write_packet(contribution, header, step.to_bytes(16, "little"))
        adds = rng.random() < 0.5
        for edge in both:
            if adds:
                edge._results.add_bypassed(contribution, shard)
            edge._results.send(now_ns)
        datagram, source = request_of(rng, python)
        reason = python.request(memoryview(datagram), source, now_ns)
        answer = LIBRARY.tb_request(repairs, results, datagram, len(datagram), network_order(source), now_ns)
        seen.add(reason)
        assert REASONS[answer] == reason
        for edge in both:
            edge.send(now_ns)
        assert native.counts() == python.counts()
        assert native.refused() == python.refused()
        assert native.next_ns() == python.next_ns()
        assert native._queue.tolist() == python._queue.tolist()
    assert all(python.counts()[name] for name in COUNTS), python.counts()
    wanted = {"admitted", "length", "kind", "checksum", "source", "epoch", "stream"}
    assert wanted | ({"tag"} if python._key else set()) <= seen
