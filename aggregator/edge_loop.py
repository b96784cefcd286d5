"""The edge's event loop: in C for engines behind the C ABI, in Python for others. Both do the same.

Waking up costs as much as a packet does. So after each batch the socket is left alone for a while, as network cards do
it: what arrives meanwhile is taken in one go, and only run control and deadlines end the rest.
"""

import select
import time
from typing import TYPE_CHECKING

from aggregator.engine import EngineError
from aggregator.engines.library_engine import LibraryEngine
from aggregator.native_loop import NativeLoop, Turn
from aggregator.receiver import NativeReceiver

if TYPE_CHECKING:
    from aggregator.edge import Edge

_IDLE_MS = 1000.0
_REST_MS = 2.0


def serve_until_readable(edge: "Edge", fd: int) -> None:
    """Receive, sum and send until something waits at `fd`. Raises OSError."""
    engine, receiver = edge.service.engine, edge.receiver
    if isinstance(engine, LibraryEngine) and isinstance(receiver, NativeReceiver) and not edge.service.failing:
        loop = NativeLoop(receiver, engine, edge.results, edge.out, edge.occupancy, int(_REST_MS * 1e6))
        if _served_in_c(edge, loop, fd):
            return
    _serve_in_python(edge, fd)


def _served_in_c(edge: "Edge", loop: NativeLoop, fd: int) -> bool:
    """False if the engine has failed before anything waited at `fd`."""
    while True:
        match loop.run(fd):
            case Turn.CONTROL:
                return True
            case Turn.PROBES:
                edge.note_probes()
            case Turn.OCCUPANCY:
                edge.occupancy.thin()
            case Turn.ENGINE_FAILED:
                edge.note_probes()
                error = EngineError("took a part of a batch although no results were waiting")
                edge.service.fall_back(error, loop.held(), time.monotonic_ns())
                return False


def _serve_in_python(edge: "Edge", fd: int) -> None:
    resting, watching = select.poll(), select.poll()
    for poller in (resting, watching):
        poller.register(fd, select.POLLIN)
    watching.register(edge.socket.fileno(), select.POLLIN)
    rest_ms = 0.0
    while True:
        wait_ms = edge.wait_ms(time.monotonic_ns())
        if rest_ms or not edge.can_receive():
            ready = resting.poll(min(wait_ms, rest_ms or _IDLE_MS))
        else:
            ready = watching.poll(wait_ms)
        rest_ms = 0.0
        if any(found != fd for found, _ in ready) and edge.receive():
            rest_ms = _REST_MS
        edge.serve(time.monotonic_ns())
        if any(found == fd for found, _ in ready):
            return
