"""The edge's event loop in C (aggregator/native/edge.c), for engines in shared libraries.

It works on the memory of the Python objects, so that either side can go on where the other stopped.
"""

import ctypes
import os
from enum import IntEnum

from aggregator.c_headers import c_headers
from aggregator.engine import HeaderBatch
from aggregator.engines.library_engine import LibraryEngine
from aggregator.occupancy import Occupancy
from aggregator.receiver import NativeReceiver
from aggregator.repair import Repairs
from aggregator.results import ResultStreams

_POINTERS = ("shape", "rows", "stride", "in", "sizes", "probes", "probe_count", "refused", "taken")
_OUT_POINTERS = ("results", "repairs", "out", "occupancy")
_ENGINE_POINTERS = ("engine", "submit", "poll", "next_deadline_ns", "take_high_water")

ROUNDS = 1 << 32  # round numbers wrap


class Turn(IntEnum):
    """Why the loop came back."""

    CONTROL = 1
    PROBES = 2
    ENGINE_FAILED = 3
    OCCUPANCY = 4
    ROUND = 5


class _Edge(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_POINTERS, *_OUT_POINTERS, *_ENGINE_POINTERS)),
        ("rest_ns", ctypes.c_int64),
        ("receive_fd", ctypes.c_int32),
        ("control_fd", ctypes.c_int32),
        ("resting", ctypes.c_uint32),
        ("held", ctypes.c_uint32),
        ("awaited_round", ctypes.c_uint32),
        ("awaited_rounds", ctypes.c_uint32),
        ("newest_round", ctypes.c_uint32),
    )


class NativeLoop:
    """The loop of one edge, for as long as its engine works."""

    def __init__(
        self,
        receiver: NativeReceiver,
        engine: LibraryEngine,
        results: ResultStreams,
        repairs: Repairs,
        out: HeaderBatch,
        occupancy: Occupancy,
        rest_ns: int,
    ):
        self._run = receiver.library.tb_edge_run
        self._out = c_headers(out)
        # What the structure only holds addresses of.
        self._owners = (receiver, engine, results, repairs, out, occupancy)
        self._edge = _Edge(
            **receiver.addresses,
            **engine.addresses(),
            results=ctypes.addressof(results.state),
            repairs=ctypes.addressof(repairs.state),
            out=ctypes.addressof(self._out),
            occupancy=ctypes.addressof(occupancy.state),
            rest_ns=rest_ns,
            receive_fd=receiver.fileno(),
        )

    def run(self, control_fd: int, awaited: range) -> Turn:
        """Serve until there is something to do that only Python can. Raises OSError."""
        self._edge.control_fd = control_fd
        self._edge.awaited_round = awaited.start % ROUNDS
        self._edge.awaited_rounds = len(awaited)
        turn: int = self._run(ctypes.addressof(self._edge))
        if turn < 0:
            raise OSError(-turn, os.strerror(-turn))
        return Turn(turn)

    def newest_round(self) -> int:
        """After `Turn.ROUND`: the newest round of which a contribution has come."""
        newest: int = self._edge.newest_round
        return newest

    def held(self) -> int:
        """How many contributions lie in the receiver's first rows that the engine did not take whole."""
        held: int = self._edge.held
        return held
