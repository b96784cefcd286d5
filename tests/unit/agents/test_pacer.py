from __future__ import annotations

import array
import errno
import gc
import os
import select
import socket
import subprocess
import sys
import textwrap
import time
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from agents._pacer import Pacer

SLOT = 64
MILLISECOND = 1_000_000


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A sender connected to a receiver, over the loopback interface."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(5)
        sender.connect(receiver.getsockname())
        yield sender, receiver


@pytest.fixture
def pacer(sockets: tuple[socket.socket, socket.socket]) -> Iterator[Pacer]:
    made = Pacer(sockets[0].fileno(), 0)
    yield made
    made.close()


def datagrams(count: int) -> tuple[bytearray, array.array[int]]:
    """Datagram i: i + 1 bytes, each of value i."""
    buffer = bytearray(SLOT * count)
    for i in range(count):
        buffer[i * SLOT : i * SLOT + i + 1] = bytes([i]) * (i + 1)
    return buffer, array.array("i", [i + 1 for i in range(count)])


def wait_done(pacer: Pacer, timeout_s: float = 5) -> None:
    readable, _, _ = select.select([pacer.done_fd], [], [], timeout_s)
    assert readable


def is_done(pacer: Pacer) -> bool:
    return bool(select.select([pacer.done_fd], [], [], 0)[0])


def test_sends_every_datagram_in_order_and_not_early(
    sockets: tuple[socket.socket, socket.socket], pacer: Pacer
) -> None:
    buffer, lengths = datagrams(20)
    start = time.monotonic_ns() + 10 * MILLISECOND
    times = array.array("q", [start + i * MILLISECOND for i in range(20)])
    pacer.start(buffer, SLOT, lengths, times)
    for i in range(20):
        data = sockets[1].recv(100)
        assert time.monotonic_ns() >= times[i]
        assert data == bytes([i]) * (i + 1)
    wait_done(pacer)
    lateness = np.asarray(pacer.lateness_ns())
    assert (pacer.sent, pacer.error, pacer.running) == (20, 0, False)
    assert lateness.dtype == np.int64
    assert lateness.shape == (20,)
    assert lateness.min() >= 0


def test_what_is_overdue_goes_out_at_once_beyond_one_batch() -> None:
    count = 1500
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        theirs.settimeout(5)
        pacer = Pacer(ours.fileno(), 0)
        due = time.monotonic_ns()
        pacer.start(np.arange(count, dtype=np.int32), 4, np.full(count, 4, np.int32), np.full(count, due))
        received = [int.from_bytes(theirs.recv(8), sys.byteorder) for _ in range(count)]
        elapsed = time.monotonic_ns() - due
        wait_done(pacer)
        lateness = np.asarray(pacer.lateness_ns())
        pacer.close()
    assert received == list(range(count))
    assert len(lateness) == count
    assert 0 <= lateness.min() <= lateness.max() <= elapsed


def test_after_a_long_stall_the_rest_keeps_its_pace() -> None:
    count, gap = 50, MILLISECOND
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        theirs.settimeout(5)
        pacer = Pacer(ours.fileno(), 0, most_catch_up_ns=10 * gap)
        late = time.monotonic_ns() - 500 * gap
        due = np.arange(late, late + count * gap, gap)
        pacer.start(bytes(4 * count), 4, np.full(count, 4, np.int32), due)
        for _ in range(count):
            theirs.recv(4)
        wait_done(pacer)
        sent = np.asarray(pacer.lateness_ns()) + due
        pacer.close()
    # Eleven at once (10 ms of the schedule, and what is due just then), the others no closer than planned.
    assert (sent[11:] - sent[0] >= (np.arange(11, count) - 11) * gap).all()
    assert sent[-1] - sent[0] >= (count - 12) * gap


def test_can_be_started_again_and_done_is_reset(sockets: tuple[socket.socket, socket.socket], pacer: Pacer) -> None:
    buffer, lengths = datagrams(3)
    for _ in range(3):
        pacer.start(buffer, SLOT, lengths, array.array("q", [0, 0, 0]))
        wait_done(pacer)
        assert [len(sockets[1].recv(100)) for _ in range(3)] == [1, 2, 3]
    pacer.start(buffer, SLOT, lengths, array.array("q", [time.monotonic_ns() + 10**12] * 3))
    assert not is_done(pacer)


def test_nothing_to_send_is_done_at_once(pacer: Pacer) -> None:
    pacer.start(b"", SLOT, array.array("i"), array.array("q"))
    wait_done(pacer)
    assert (pacer.sent, list(pacer.lateness_ns())) == (0, [])


def test_start_while_running_is_refused_and_cancel_is_prompt(
    sockets: tuple[socket.socket, socket.socket], pacer: Pacer
) -> None:
    buffer, lengths = datagrams(2)
    times = array.array("q", [0, time.monotonic_ns() + 10**12])
    pacer.start(buffer, SLOT, lengths, times)
    assert sockets[1].recv(100) == b"\0"
    with pytest.raises(RuntimeError, match="still sending"):
        pacer.start(buffer, SLOT, lengths, times)
    assert pacer.running
    begin = time.monotonic()
    pacer.cancel()
    assert time.monotonic() - begin < 2
    assert (pacer.running, pacer.sent, is_done(pacer)) == (False, 1, True)
    pacer.start(buffer, SLOT, lengths, array.array("q", [0, 0]))
    wait_done(pacer)
    assert pacer.sent == 2


def test_close_ends_a_running_pacer(sockets: tuple[socket.socket, socket.socket]) -> None:
    pacer = Pacer(sockets[0].fileno(), 0)
    buffer, lengths = datagrams(1)
    pacer.start(buffer, SLOT, lengths, array.array("q", [time.monotonic_ns() + 10**12]))
    begin = time.monotonic()
    pacer.close()
    pacer.close()
    assert time.monotonic() - begin < 2
    for call in (lambda: pacer.start(b"", SLOT, lengths, lengths), pacer.cancel, pacer.lateness_ns):
        with pytest.raises(ValueError, match=r"closed|int64"):
            call()
    assert not pacer.running


@pytest.mark.parametrize(
    ("slot_bytes", "lengths", "times", "message"),
    [
        (SLOT, array.array("i", [1, 1]), array.array("q", [0]), "alike"),
        (SLOT, array.array("i", [1] * 3), array.array("q", [0] * 3), "do not fit"),
        (0, array.array("i", [1]), array.array("q", [0]), "slot_bytes"),
        (-1, array.array("i", [1]), array.array("q", [0]), "slot_bytes"),
        (SLOT, array.array("i", [0]), array.array("q", [0]), r"lengths\[0\]"),
        (SLOT, array.array("i", [1, SLOT + 1]), array.array("q", [0, 0]), r"lengths\[1\]"),
        (SLOT, array.array("i", [1, 1]), array.array("q", [5, 4]), r"times_ns\[1\]"),
        (SLOT, array.array("i", [1]), array.array("q", [-1]), r"times_ns\[0\]"),
        (SLOT, array.array("q", [1]), array.array("q", [0]), "int32"),
        (SLOT, array.array("f", [1]), array.array("q", [0]), "int32"),
        (SLOT, array.array("i", [1]), array.array("d", [0]), "int64"),
        (SLOT, np.ones((1, 1), np.int32), array.array("q", [0]), "lengths"),
        (SLOT, np.ones(4, np.int32)[::2], array.array("q", [0, 0]), "contiguous"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(
    pacer: Pacer, slot_bytes: int, lengths: array.array[int], times: array.array[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pacer.start(bytearray(2 * SLOT), slot_bytes, lengths, times)
    assert not pacer.running


def test_bad_descriptor_and_priority_are_refused(sockets: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        Pacer(-1, 0)
    for priority in (-1, 100):
        with pytest.raises(ValueError, match="priority"):
            Pacer(sockets[0].fileno(), priority)


def test_a_lasting_error_ends_the_sending_and_is_told() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        pacer = Pacer(ours.fileno(), 0)
        sizes = array.array("i", [100, 60_000, 100])
        pacer.start(bytearray(3 * 60_000), 60_000, sizes, array.array("q", [0, 0, 0]))
        wait_done(pacer)
        assert (pacer.sent, pacer.error, pacer.running) == (1, errno.EMSGSIZE, False)
        pacer.close()


def test_a_full_socket_is_retried_and_nothing_is_lost() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        pacer = Pacer(ours.fileno(), 0)
        count = 200
        pacer.start(np.repeat(np.arange(count), 128), 1024, np.full(count, 1024, np.int32), np.zeros(count, np.int64))
        time.sleep(0.05)
        assert pacer.running
        theirs.settimeout(5)
        assert [theirs.recv(2000)[0] for _ in range(count)] == list(range(count))
        wait_done(pacer)
        assert (pacer.sent, pacer.error) == (count, 0)
        assert pacer.retries > 0
        pacer.close()


def test_an_earlier_refusal_from_the_network_loses_nothing() -> None:
    """A connected socket reports a port that was closed; the datagram at hand is sent all the same."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        address = receiver.getsockname()
        receiver.close()
        sender.connect(address)
        sender.send(b"refused")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as late:
            late.bind(address)
            late.settimeout(5)
            pacer = Pacer(sender.fileno(), 0)
            pacer.start(b"x", 1, array.array("i", [1]), array.array("q", [0]))
            assert late.recv(10) == b"x"
            wait_done(pacer)
            assert (pacer.sent, pacer.retries, pacer.error) == (1, 1, 0)
            pacer.close()


def test_the_buffer_is_held_and_then_released(sockets: tuple[socket.socket, socket.socket]) -> None:
    class Buffer(bytearray):
        pass

    pacer = Pacer(sockets[0].fileno(), 0)
    first, second = Buffer(b"x"), Buffer(b"y")
    gone = weakref.ref(first)
    pacer.start(first, 1, array.array("i", [1]), array.array("q", [time.monotonic_ns() + 10**12]))
    with pytest.raises(BufferError):
        first.append(1)
    pacer.cancel()
    pacer.start(second, 1, array.array("i", [1]), array.array("q", [0]))
    del first
    gc.collect()
    assert gone() is None
    pacer.close()
    second.append(1)


def test_no_descriptor_or_thread_is_left(sockets: tuple[socket.socket, socket.socket]) -> None:
    def open_things() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    before = open_things()
    for _ in range(20):
        pacer = Pacer(sockets[0].fileno(), 0)
        pacer.start(b"x", 1, array.array("i", [1]), array.array("q", [0]))
        with pytest.raises(ValueError, match="alike"):
            pacer.start(b"x", 1, array.array("i", [1]), array.array("q"))
        with pytest.raises(OSError, match="Bad file"):
            Pacer(-1, 0)
        del pacer
    assert open_things() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to ask for real-time priority and to give it up")
def test_says_whether_it_runs_in_real_time() -> None:
    script = """
        import array, os, select, socket
        from agents._pacer import Pacer
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            allowed = True
        except PermissionError:
            allowed = False
        before = Pacer(ours.fileno(), 10)
        os.setuid(65534)
        after = Pacer(ours.fileno(), 10)
        after.start(b"x", 1, array.array("i", [1]), array.array("q", [0]))
        select.select([after.done_fd], [], [], 5)
        print(before.realtime == allowed, after.realtime, theirs.recv(10))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout.split() == ["True", "False", "b'x'"], done.stderr


def test_copies_go_to_each_destination_in_turn() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as first,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as second,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        for receiver in (first, second):
            receiver.bind(("127.0.0.1", 0))
            receiver.settimeout(5)
        buffer, lengths = datagrams(3)
        now = time.monotonic_ns()
        times = array.array("q", [now + i * MILLISECOND for i in range(6)])
        copies = Pacer(sender.fileno(), 0)
        try:
            copies.start(buffer, SLOT, lengths, times, [first.getsockname(), second.getsockname()])
            wait_done(copies)
            assert copies.sent == 6
        finally:
            copies.close()
        for receiver in (first, second):
            assert [receiver.recv(SLOT) for _ in range(3)] == [bytes([i]) * (i + 1) for i in range(3)]


@pytest.mark.parametrize("destinations", [["127.0.0.1"], [("nowhere", 1)], [("127.0.0.1", 70000)]])
def test_destinations_that_are_none_are_refused(pacer: Pacer, destinations: list[object]) -> None:
    buffer, lengths = datagrams(1)
    with pytest.raises(ValueError, match="destinations"):
        pacer.start(buffer, SLOT, lengths, array.array("q", [0]), destinations)  # type: ignore[arg-type]


def test_copies_need_a_time_each(pacer: Pacer) -> None:
    buffer, lengths = datagrams(2)
    to = [("127.0.0.1", 1), ("127.0.0.1", 2)]
    with pytest.raises(ValueError, match="for each of 2 copies"):
        pacer.start(buffer, SLOT, lengths, array.array("q", [0, 0, 0]), to)
