"""The edge's event loop: in C for engines behind the C ABI, in Python for others. Both do the same.

Waking up costs as much as a packet does. So after each batch the socket is left alone for a while, as network cards do
it: what arrives meanwhile is taken in one go, and only run control and deadlines end the rest.
"""

import select
import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from aggregator.engine import EngineError
from aggregator.engines.library_engine import LibraryEngine
from aggregator.native_loop import ROUNDS, NativeLoop, Turn
from aggregator.receiver import NativeReceiver

if TYPE_CHECKING:
    from aggregator.edge import Edge

_NO_ROUNDS = range(0)
_REST_MS = 2.0


def serve_until_readable(edge: "Edge", fd: int, awaited: range = _NO_ROUNDS) -> int | None:
    """Receive, sum and send until something waits at `fd`. Raises OSError.

    A contribution of an awaited round, modulo 2^32, ends it too; then the newest of those that have come is returned.
    """
    engine, receiver = edge.service.engine, edge.receiver
    if isinstance(engine, LibraryEngine) and isinstance(receiver, NativeReceiver) and not edge.service.failing:
        loop = NativeLoop(receiver, engine, edge.results, edge.repairs, edge.out, edge.occupancy, int(_REST_MS * 1e6))
        turn = _serve_in_c(edge, loop, fd, awaited)
        if turn != Turn.ENGINE_FAILED:
            return loop.newest_round() if turn == Turn.ROUND else None
    return _serve_in_python(edge, fd, awaited)


def _serve_in_c(edge: "Edge", loop: NativeLoop, fd: int, awaited: range) -> Turn:
    """Why it ended: `CONTROL`, `ROUND` or `ENGINE_FAILED`."""
    while True:
        match turn := loop.run(fd, awaited):
            case Turn.CONTROL:
                return turn
            case Turn.ROUND:
                edge.note_probes()
                return turn
            case Turn.PROBES:
                edge.note_probes()
            case Turn.OCCUPANCY:
                edge.occupancy.thin()
            case Turn.ENGINE_FAILED:
                edge.note_probes()
                error = EngineError("took a part of a batch although no results were waiting")
                edge.service.fall_back(error, loop.held(), time.monotonic_ns())
                return turn


def _serve_in_python(edge: "Edge", fd: int, awaited: range) -> int | None:
    resting, asking, watching = select.poll(), select.poll(), select.poll()
    for poller in (resting, asking, watching):
        poller.register(fd, select.POLLIN)
    requests = edge.repairs.fileno()
    for poller in (asking, watching):
        poller.register(requests, select.POLLIN)
    watching.register(edge.socket.fileno(), select.POLLIN)
    rest_ms = 0.0
    while True:
        wait_ms = edge.wait_ms(time.monotonic_ns())
        if rest_ms:
            polled = resting.poll(min(wait_ms, rest_ms))
        else:
            polled = (watching if edge.can_receive() else asking).poll(wait_ms)
        ready = {found for found, _ in polled}
        rest_ms = 0.0
        newest = None
        if edge.socket.fileno() in ready:
            count, emptied = edge.receive()
            rest_ms = _REST_MS if emptied else 0.0
            newest = _newest(edge.receiver.headers.round[:count], awaited)
        if requests in ready:
            edge.repairs.take_requests(time.monotonic_ns())
            rest_ms = _REST_MS
        edge.serve(time.monotonic_ns())
        if newest is not None or fd in ready:
            return newest


def _newest(rounds: NDArray[np.uint32], awaited: range) -> int | None:
    ahead = (rounds.astype(np.int64) - awaited.start) % ROUNDS
    ahead = ahead[ahead < len(awaited)]
    return (awaited.start + int(ahead.max())) % ROUNDS if len(ahead) else None
