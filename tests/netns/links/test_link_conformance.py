"""What every link kind must do, measured at the nodes' ends. Counts are exact; times are never early."""

import random
import socket
import statistics
import struct
import time
from threading import Thread

import pytest
from conftest import Bench
from link_probes import (
    LARGEST,
    PROBE_TYPE,
    SMALLEST,
    delays_ns,
    direction,
    link,
    send_in_thread,
    serialisation_ns,
    settled,
)

# Both clocks are read, and converted, with this much care.
CLOCK_NS = 20_000
# On a busy machine with two processors; benchmarks print what it really is.
MEDIAN_NS = 200_000


def test_delay_of_each_direction_is_its_own(bench: Bench) -> None:
    bench.build(link("a", "b", direction(20.0), direction(35.5)))
    a, b = bench.port("a", "b"), bench.port("b", "a")
    senders = [send_in_thread(a, 200, every_s=0.002), send_in_thread(b, 200, every_s=0.002)]
    forward, backward = b.receive(0.5, 200), a.receive(0.5, 200)
    for sender in senders:
        sender.join()
    for received, asked_ns in ((forward, 20_000_000), (backward, 35_500_000)):
        delays = delays_ns(received)
        assert len(delays) == 200
        assert delays[0] >= asked_ns - CLOCK_NS
        assert statistics.median(delays) <= asked_ns + MEDIAN_NS


@pytest.mark.parametrize("one_way_delay_ms", [0.0, 0.1, 0.5])
def test_short_delays_and_none(bench: Bench, one_way_delay_ms: float) -> None:
    bench.build(link("a", "b", direction(one_way_delay_ms)))
    a, b = bench.port("a", "b"), bench.port("b", "a")
    sender = send_in_thread(a, 200, every_s=0.002)
    delays = delays_ns(b.receive(0.5, 200))
    sender.join()
    assert len(delays) == 200
    assert delays[0] >= one_way_delay_ms * 1e6 - CLOCK_NS
    assert statistics.median(delays) <= one_way_delay_ms * 1e6 + MEDIAN_NS


@pytest.mark.parametrize(
    ("rate_mbps", "size", "count"),
    [(0.1, SMALLEST, 100), (1, 1514, 60), (20, LARGEST, 200), (100, LARGEST, 1000), (1000, LARGEST, 2000)],
)
def test_back_to_back_frames_leave_spaced_by_their_transmission_time(
    bench: Bench, rate_mbps: float, size: int, count: int
) -> None:
    bench.build(link("a", "b", direction(5.0, rate_mbps, count * size)))
    a, b, tap = bench.port("a", "b"), bench.port("b", "a"), bench.tap("a", "b")
    for number in range(count):
        a.send(number, size)
    received = b.receive(1.0, count)
    assert [one.number for one in received] == list(range(count))
    # What a serial line makes of the times at which the frames really left: a sender can be held up.
    left_ns, free_ns, expected_ns = tap.stamps(), 0, []
    for number in range(count):
        free_ns = max(left_ns[number], free_ns) + serialisation_ns(size, rate_mbps)
        expected_ns.append(free_ns + 5_000_000)
    assert all(one.received_ns >= due - CLOCK_NS for one, due in zip(received, expected_ns, strict=True))
    took_ns = received[-1].received_ns - received[0].received_ns
    assert took_ns == pytest.approx(expected_ns[-1] - expected_ns[0], rel=0.02)


@pytest.mark.parametrize(
    ("size", "queue_bytes", "waiting"),
    [(LARGEST, 20 * LARGEST, 20), (LARGEST, 21 * LARGEST - 1, 20), (1000, 50_000, 50), (LARGEST, 0, 0)],
)
def test_queue_holds_what_was_asked_and_not_a_frame_more(
    bench: Bench, size: int, queue_bytes: int, waiting: int
) -> None:
    rate_mbps = size / LARGEST  # 72 ms a frame: the burst is over long before the first has left
    running = bench.build(link("a", "b", direction(5.0, rate_mbps, queue_bytes)))
    a, b = bench.port("a", "b"), bench.port("b", "a")
    began = time.monotonic()
    for number in range(100):
        a.send(number, size)
    assert time.monotonic() - began < 0.070
    received = b.receive(1.0)
    passed = len(received)
    if bench.kind.name == "netem":  # one largest frame's bytes more may wait: docs/links-netem.md
        assert waiting + 1 <= passed <= (queue_bytes + LARGEST) // size + 1
    else:
        assert passed == waiting + 1
    assert [one.number for one in received] == list(range(passed))
    counters = settled(running, ("a", "b"), 100)
    assert counters.frames_in == 100
    assert counters.frames_out == passed
    assert counters.dropped_queue == 100 - passed
    assert counters.dropped_loss == counters.dropped_other == 0
    assert counters.queue_high_water_bytes == (waiting * size if bench.has_program else None)


def test_counters_are_exact_and_directions_independent(bench: Bench) -> None:
    running = bench.build(link("a", "b", direction(10.0), direction(3.0, 50)))
    a, b = bench.port("a", "b"), bench.port("b", "a")
    sizes = [random.Random(n).randint(SMALLEST, LARGEST) for n in range(500)]
    for number, size in enumerate(sizes):
        a.send(number, size)
    for number in range(70):
        b.send(number, 700)
    assert [one.number for one in b.receive(0.5, 500)] == list(range(500))
    assert [one.number for one in a.receive(0.5, 70)] == list(range(70))
    forward, backward = settled(running, ("a", "b"), 500), settled(running, ("b", "a"), 70)
    assert (forward.frames_in, forward.bytes_in) == (forward.frames_out, forward.bytes_out) == (500, sum(sizes))
    assert (backward.frames_in, backward.bytes_in) == (backward.frames_out, backward.bytes_out) == (70, 49_000)
    for counters in (forward, backward):
        assert counters.dropped_queue == counters.dropped_loss == counters.dropped_other == 0
        if bench.has_program:
            assert counters.worst_lateness_ns is not None
            assert counters.worst_lateness_ns > 0
        else:
            assert counters.worst_lateness_ns is None


def test_frames_arrive_unchanged(bench: Bench) -> None:
    bench.build(link("a", "b", direction(1.0)))
    a, b = bench.port("a", "b"), bench.port("b", "a")
    chance = random.Random(5)
    sizes = [SMALLEST, 61, 511, 512, 513, 1514, 4097, LARGEST]
    for number, size in enumerate(sizes):
        a.send(number, size, filling=chance.randbytes(size))
    received = b.receive(0.5, len(sizes))
    chance = random.Random(5)
    for one, size in zip(received, sizes, strict=True):
        assert one.frame[26:] == chance.randbytes(size)[: size - 26]


def test_a_full_line_of_small_frames_is_held_without_loss(bench: Bench) -> None:
    # 40 ms at 20 Mbit/s would be 11 large frames; these are over a thousand.
    running = bench.build(link("a", "b", direction(40.0, 20, 1_000_000)))
    a, b = bench.port("a", "b"), bench.port("b", "a")
    sender = send_in_thread(a, 5000, 64)
    assert [one.number for one in b.receive(0.5, 5000)] == list(range(5000))
    sender.join()
    counters = settled(running, ("a", "b"), 5000)
    assert (counters.frames_out, counters.dropped_queue, counters.dropped_other) == (5000, 0, 0)


def test_a_queue_far_longer_than_the_flight_is_held_without_loss(bench: Bench) -> None:
    running = bench.build(link("a", "b", direction(1.0, 200, 3000 * LARGEST)))
    a, b = bench.port("a", "b"), bench.port("b", "a")
    sender = send_in_thread(a, 2000, LARGEST)
    assert [one.number for one in b.receive(0.5, 2000)] == list(range(2000))
    sender.join()
    assert settled(running, ("a", "b"), 2000).dropped_other == 0


def lost(bench: Bench, loss: float, seed: int, count: int = 2000) -> set[int]:
    names = f"s{len(bench.nodes)}", f"r{len(bench.nodes)}"
    running = bench.build(link(*names, direction(1.0, loss=loss, seed=seed), direction(1.0)))
    sender = bench.port(*names)
    receiver = bench.port(*reversed(names))
    for number in range(count):
        sender.send(number)
    received = {one.number for one in receiver.receive(0.3)}
    missing = set(range(count)) - received
    assert settled(running, names, count).dropped_loss == len(missing)
    for number in range(100):
        receiver.send(number)
    assert len(sender.receive(0.3, 100)) == 100, "loss of one direction touches the other"
    return missing


def test_loss_has_the_probability_asked_and_is_reproducible(bench: Bench) -> None:
    first, again, other = lost(bench, 0.1, seed=1), lost(bench, 0.1, seed=1), lost(bench, 0.1, seed=2)
    assert (first == again) is bench.takes_seed
    assert first != other
    for missing in (first, other):
        assert abs(len(missing) - 200) <= 5 * (2000 * 0.1 * 0.9) ** 0.5


def test_no_loss_and_certain_loss(bench: Bench) -> None:
    assert len(lost(bench, 0.0, seed=1)) == 0
    assert len(lost(bench, 1.0, seed=1, count=200)) == 200


def test_a_slow_full_neighbour_holds_nobody_back(bench: Bench) -> None:
    bench.build(
        link("a", "b", direction(5.0, 0.5, 10_000_000)),
        link("a", "c", direction(5.0)),
        link("c", "b", direction(5.0)),
    )
    slow = bench.port("a", "b")
    for number in range(500):
        slow.send(number, LARGEST)
    for start, end in (("a", "c"), ("c", "b")):
        sender, receiver = bench.port(start, end), bench.port(end, start)
        thread = send_in_thread(sender, 200, every_s=0.001)
        delays = delays_ns(receiver.receive(0.5, 200))
        thread.join()
        assert len(delays) == 200
        assert statistics.median(delays) <= 5_000_000 + MEDIAN_NS


def test_ends_have_the_mtu_and_no_offloads(bench: Bench) -> None:
    bench.build(link("a", "b", direction(1.0)))
    for name, interface in (("a", "to-b"), ("b", "to-a")):
        node = bench.node(name)
        assert " mtu 9000 " in node.run("ip", "link", "show", interface)
        assert "LOWER_UP" in node.run("ip", "link", "show", interface)
        features = dict(line.strip().split(": ", 1) for line in node.run("ethtool", "-k", interface).splitlines()[1:])
        for feature in (
            "rx-checksumming",
            "tx-checksumming",
            "tcp-segmentation-offload",
            "generic-segmentation-offload",
            "generic-receive-offload",
        ):
            assert features[feature].split()[0] == "off", feature


def test_vlan_tags_pass_unchanged(bench: Bench) -> None:
    """A receiver takes the tag out of a frame; a link has to put it back, in large frames and in small ones."""
    bench.build(link("a", "b", direction(1.0)))
    a = bench.port("a", "b")

    def receive_tagged() -> socket.socket:
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
        opened.setsockopt(263, 8, 1)  # SOL_PACKET, PACKET_AUXDATA
        opened.bind(("to-a", 3))
        opened.settimeout(1.0)
        return opened

    with bench.node("b").open(receive_tagged) as receiver:
        for size in (SMALLEST, LARGEST):
            inner = PROBE_TYPE.to_bytes(2, "big") + bytes(size - 14)
            a.socket.send(b"\xff" * 6 + b"\x02" * 6 + struct.pack("!HH", 0x8100, 77) + inner)
            frame, ancillary, _, _ = receiver.recvmsg(LARGEST + 64, 256)
            *_, tag, tag_type = struct.unpack("IIIHHHH", ancillary[0][2])
            assert (tag_type, tag) == (0x8100, 77)
            assert frame[12:] == inner


def test_tcp_and_udp_of_the_kernel_pass(bench: Bench) -> None:
    """The kernel's own packets have whole checksums, and none is larger than a frame."""
    bench.build(link("a", "b", direction(2.0, 200)))
    a, b = bench.node("a"), bench.node("b")
    a.run("ip", "address", "add", "10.9.0.1/24", "dev", "to-b")
    b.run("ip", "address", "add", "10.9.0.2/24", "dev", "to-a")
    sent = random.Random(1).randbytes(2_000_000)

    def udp() -> socket.socket:
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    with b.open(udp) as receiver, a.open(udp) as sender:
        receiver.bind(("10.9.0.2", 7000))
        receiver.settimeout(2)
        sender.sendto(sent[:8000], ("10.9.0.2", 7000))
        assert receiver.recv(9000) == sent[:8000]
    with b.open(lambda: socket.create_server(("10.9.0.2", 7000))) as server:
        client = a.open(lambda: socket.create_connection(("10.9.0.2", 7000), 2))
        server.settimeout(2)
        connection, _ = server.accept()
        with client, connection:
            connection.settimeout(2)
            thread = Thread(target=client.sendall, args=(sent,))
            thread.start()
            got = bytearray()
            while len(got) < len(sent) and (part := connection.recv(1 << 20)):
                got += part
            thread.join()
    assert got == sent
