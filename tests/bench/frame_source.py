"""Frames sent and counted fast enough to load links: batches of system calls, in processes of their own."""

import ctypes
import multiprocessing
import os
import socket
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from typing import Any

LOAD_TYPE = 0x88B6  # for local experiments, not the probes' type
BATCH = 32

_fork = multiprocessing.get_context("fork")
_libc = ctypes.CDLL(None, use_errno=True)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Header(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.POINTER(_Vector)),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    _fields_ = (("header", _Header), ("length", ctypes.c_uint32))


class _Batch:
    def __init__(self, size: int, buffers: int, kind: int = LOAD_TYPE) -> None:
        frame = b"\xff" * 6 + b"\x02" * 6 + kind.to_bytes(2, "big")
        self.buffers = [ctypes.create_string_buffer(frame.ljust(size, b"\0"), size) for _ in range(buffers)]
        self.vectors = (_Vector * BATCH)()
        self.messages = (_Message * BATCH)()
        for n in range(BATCH):
            self.vectors[n] = _Vector(ctypes.addressof(self.buffers[n % buffers]), size)
            self.messages[n].header.vectors = ctypes.pointer(self.vectors[n])
            self.messages[n].header.vector_count = 1


def open_load_socket(interface: str, receives: bool = False) -> socket.socket:
    """To be called inside the network namespace of the interface. Frames that nobody receives end in the kernel."""
    kind = LOAD_TYPE if receives else 0
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(kind))
    opened.setsockopt(socket.SOL_SOCKET, 32, 64 << 20)  # SO_SNDBUFFORCE
    opened.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
    opened.bind((interface, kind))
    return opened


def _send(
    batch: _Batch, sockets: Sequence[socket.socket], frames_per_s: float, seconds: float, sent: Any, used_ns: Any
) -> None:
    """Send at the rate, in turn through the sockets, in batches as large as a millisecond's worth."""
    at_once = max(1, min(BATCH, round(frames_per_s / len(sockets) / 1000)))
    step = at_once * len(sockets) / frames_per_s
    began = time.monotonic()
    turn = count = 0
    while (now := time.monotonic()) < began + seconds:
        due = began + turn * step
        if due > now:
            time.sleep(max(0.0, due - now - 0.0001))
            while time.monotonic() < due:
                pass
        for one in sockets:
            done = 0
            while done < at_once:
                went = _libc.sendmmsg(one.fileno(), ctypes.byref(batch.messages[done]), at_once - done, 0)
                done += max(0, went)
            count += at_once
        turn += 1
        if now - due > 0.05:  # cannot keep up: do not burst afterwards
            began += now - due
            seconds -= now - due
    sent.value = count
    used_ns.value = time.process_time_ns()


def _receive(sockets: Sequence[socket.socket], size: int, received: Any) -> None:
    batch = _Batch(size, BATCH)
    (one,) = sockets
    while True:
        received.value += max(0, _libc.recvmmsg(one.fileno(), batch.messages, BATCH, 0x10000, None))  # MSG_WAITFORONE


class Load:
    """A sender of frames in a process of its own; `used_ns`: the processor time that it took, once it has finished."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        size: int,
        frames_per_s: float,
        seconds: float,
        kind: int = LOAD_TYPE,
    ) -> None:
        self._sent = _fork.Value(ctypes.c_int64, 0, lock=False)
        self._used_ns = _fork.Value(ctypes.c_int64, 0, lock=False)
        arguments = (_Batch(size, 1, kind), sockets, frames_per_s, seconds, self._sent, self._used_ns)
        self._process = _fork.Process(target=_send, args=arguments)
        self._process.start()

    def finish(self) -> int:
        """Wait for its end; the number of frames sent."""
        self._process.join()
        self.used_ns = _count(self._used_ns)
        return _count(self._sent)


class Sink:
    """A receiver that copies every frame, in a process of its own; `used_ns` as of `Load`."""

    def __init__(self, one: socket.socket, size: int) -> None:
        self._received = _fork.Value(ctypes.c_int64, 0, lock=False)
        self._process = _fork.Process(target=_receive, args=([one], size, self._received))
        self._process.start()

    def finish(self) -> int:
        """End it when nothing has come for a while; the number of frames received."""
        before = -1
        while _count(self._received) > before:
            before = _count(self._received)
            time.sleep(0.3)
        assert self._process.pid is not None
        self.used_ns = round(processor_seconds(self._process.pid) * 1e9)
        self._process.terminate()
        self._process.join()
        return _count(self._received)


def _count(shared: Any) -> int:
    """A shared integer: typeshed takes its value for a ctypes object."""
    count: int = shared.value
    return count


def _spin() -> None:
    while True:
        pass


def hogs(count: int) -> list[BaseProcess]:
    """Processes that keep processors busy; `terminate` ends each."""
    started: list[BaseProcess] = [_fork.Process(target=_spin, daemon=True) for _ in range(count)]
    for process in started:
        process.start()
    return started


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used, from the scheduler's own nanoseconds: ticks miss short runs."""
    used = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as schedstat:
            used += int(schedstat.read().split()[0])
    return used / 1e9


def tick_seconds(pid: int) -> float:
    """The same as the kernel's timer ticks saw it, which is what `ps` and `top` show."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
