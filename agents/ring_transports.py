"""Two ring all-reduces over TCP: PyTorch's Gloo, and a plain one in which every part moves on as soon as it is there.

Gloo sends a part only when the receiver has said that it is ready for it, which on long links costs round trips.
"""

import os
import queue
import socket
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

TIMEOUT_S = 60.0
PORT = 5300

Payload = NDArray[np.float32]


class Ring(Protocol):
    """One member's end of the ring."""

    def join(self) -> None:
        """Connect; every member must have been made. Raises OSError or RuntimeError."""
        ...

    def all_reduce(self, payload: Payload) -> None:
        """Replace the payload, as long on all members, by the sum of all members'. Returns when it is here."""
        ...


def make_ring(setup: Mapping[str, Any]) -> Ring:
    """The member's end of the ring that a `setup` describes: its `transport` is tcp or gloo."""
    if setup["transport"] == "gloo":
        return GlooRing(setup["rank"], setup["world_size"], setup["interface"], setup["meeting_point"])
    return TcpRing(setup["rank"], setup["world_size"], setup["address"], setup["next_address"])


class TcpRing:
    """Parts of the payload go around twice: summed on the first way, handed out on the second."""

    def __init__(self, rank: int, members: int, address: str, next_address: str, port: int = PORT) -> None:
        """Listens for the member before. Raises OSError."""
        self._rank = rank
        self._members = members
        self._next = (next_address, port)
        self._listener = socket.create_server((address, port))
        self._listener.settimeout(TIMEOUT_S)
        self._before: socket.socket | None = None
        # Sending has a thread of its own: while a part waits for the window, the next one is taken in.
        self._outgoing: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def join(self) -> None:
        onwards = socket.create_connection(self._next, TIMEOUT_S)
        onwards.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._before, _ = self._listener.accept()
        self._before.settimeout(TIMEOUT_S)
        self._listener.close()
        threading.Thread(target=self._send_all, args=(onwards,), daemon=True).start()

    def all_reduce(self, payload: Payload) -> None:
        parts = np.array_split(payload, self._members)
        for step in range(2 * (self._members - 1)):
            summing = step < self._members - 1
            self._outgoing.put(parts[(self._rank - step) % self._members].tobytes())
            part = parts[(self._rank - step - 1) % self._members]
            came = self._receive(part.nbytes)
            if summing:
                part += came
            else:
                part[:] = came

    def _receive(self, size: int) -> Payload:
        if self._before is None:
            raise OSError("the ring is not joined")
        part = bytearray(size)
        view = memoryview(part)
        while view:
            count = self._before.recv_into(view)
            if not count:
                raise OSError("the member before has closed the ring")
            view = view[count:]
        return np.frombuffer(part, np.float32)

    def _send_all(self, onwards: socket.socket) -> None:
        while True:
            onwards.sendall(self._outgoing.get())


class GlooRing:
    """PyTorch's collective operations; Gloo reduces by a ring, in the order of the ranks."""

    def __init__(self, rank: int, members: int, interface: str, meeting_point: str) -> None:
        """Raises ImportError without PyTorch."""
        from agents.workloads.pytorch import torch  # noqa: PLC0415 - the other transport does without

        self._torch = torch
        self._rank = rank
        self._members = members
        self._meeting_point = meeting_point
        os.environ["GLOO_SOCKET_IFNAME"] = interface

    def join(self) -> None:
        self._torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{self._meeting_point}",
            rank=self._rank,
            world_size=self._members,
            timeout=timedelta(seconds=TIMEOUT_S),
        )

    def all_reduce(self, payload: Payload) -> None:
        self._torch.distributed.all_reduce(self._torch.frombuffer(payload, dtype=self._torch.float32))
