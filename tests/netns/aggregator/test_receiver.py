"""Both receivers, the one in Python and the one in C, take the same from a real socket."""

import socket
from collections.abc import Iterator

import numpy as np
import pytest
from edge_rig import CONTRIBUTORS, EDGE, JOB, Namespace, edge_network, group_of, root_refusal

from aggregator import sockets
from aggregator.admission import Shape
from aggregator.receiver import BATCH, NativeReceiver, PythonReceiver, Receiver, batch_of, native_library
from aggregator.results import datagram_rows
from aggregator.wire.packet import CONTRIBUTION_PORT, Header, Kind, write_packet, write_probe

pytestmark = pytest.mark.skipif(bool(root_refusal()), reason=root_refusal())
SHAPE = Shape(JOB, CONTRIBUTORS, [100_000], 2000)
A, B, C = CONTRIBUTORS


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[Namespace, Namespace, Namespace]]:
    with edge_network() as spaces:
        yield spaces


@pytest.fixture(params=["python", "c"])
def receiver(
    request: pytest.FixtureRequest, network: tuple[Namespace, Namespace, Namespace]
) -> Iterator[tuple[Receiver, Namespace]]:
    wan, edge, _ = network
    library = native_library()
    if request.param == "c" and library is None:
        pytest.skip("the C receiver is not built here")
    with edge.entered():
        sock = sockets.open_receiver()
    flows = [(group_of(source), source) for source in CONTRIBUTORS]
    for group, source in flows:
        sockets.join(sock, group, source, EDGE)
    made = (
        PythonReceiver(sock, SHAPE)
        if request.param == "python" or not library
        else NativeReceiver(library, sock, SHAPE)
    )
    made.allow(flows)
    yield made, wan
    sock.close()


def sender_of(wan: Namespace, address: str) -> socket.socket:
    sender = wan.udp_socket()
    sender.bind((address, 0))
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
    sender.connect((group_of(address), CONTRIBUTION_PORT))
    return sender


def contribution(chunk: int, seed: int, **fields: object) -> bytes:
    values = np.random.default_rng(seed).integers(-(2**31), 2**31, 2000, np.int32)
    given: dict[str, object] = {"source": 1, "job": JOB, "bitmap": 2, "epoch": 4, "round": 6, **fields}
    header = Header(kind=Kind.CONTRIBUTION, shard=0, chunk=chunk, value_count=2000, **given)  # type: ignore[arg-type]
    out = bytearray(9000)
    return bytes(out[: write_packet(memoryview(out), header, values.tobytes())])


def test_contributions_are_packed_in_order_and_the_rest_is_counted(receiver: tuple[Receiver, Namespace]) -> None:
    made, wan = receiver
    with sender_of(wan, A) as sender:
        probe = memoryview(bytearray(100))
        header = Header(Kind.PROBE, 1, JOB, 4, 0, 0, 12, 2, number=0xE8010015, bitmap=2)
        good = [contribution(chunk, chunk) for chunk in range(4)]
        sender.send(good[0])
        sender.send(good[1][:-1])
        sender.send(probe[: write_probe(probe, header, 987)])
        sender.send(good[1])
        sender.send(contribution(2, 2, source=2, bitmap=4))
        sender.send(good[2])
        sender.send(good[3])
    count, emptied = made.receive()
    assert (count, emptied) == (4, True)
    assert made.headers.chunk[:4].tolist() == [0, 1, 2, 3]
    assert made.headers.source[:4].tolist() == [1] * 4
    assert set(made.headers.epoch[:4].tolist()) == {4}
    assert set(made.headers.round[:4].tolist()) == {6}
    assert set(made.headers.job[:4].tolist()) == {JOB}
    for row in range(4):
        assert bytes(made.datagram(row)) == good[row]
        assert made.payloads[row].tobytes() == good[row][64:]
    assert dict(made.refused()) == {"length": 1, "source": 1}
    [seen] = made.take_probes()
    assert (seen.probe, seen.group, seen.sent_ns) == (12, "232.1.0.21", 987)
    assert made.take_probes() == []


def test_batch_is_bounded_and_says_whether_more_waits(receiver: tuple[Receiver, Namespace]) -> None:
    made, wan = receiver
    with sender_of(wan, B) as sender:
        batch = batch_of(datagram_rows(1, 2000).strides[0])
        assert 8 < batch < BATCH
        for _ in range(2 * batch - 1):
            sender.send(contribution(0, 1, source=2, bitmap=4))
    assert made.receive() == (batch, False)
    assert made.receive() == (batch - 1, True)
    assert made.receive() == (0, True)
