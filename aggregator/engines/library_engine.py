"""Engines that are shared libraries behind the C ABI of `testbed_engine.h`; the built-in engine `native` is one."""

import ctypes
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggregator.c_headers import CHeaders, c_headers
from aggregator.engine import (
    INDEX_WAYS,
    Capabilities,
    Counters,
    EngineConfig,
    EngineError,
    HeaderBatch,
    Stats,
    check_clique,
    check_config,
)

ABI_VERSION = 2
_NATIVE_MODULE = "aggregator.engines._native"
_COLLISION_POLICIES = ("bypass-new", "evict-old")
_VALUE_BYTES = 4
_U8, _U32, _U64, _I64 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64


class _Config(ctypes.Structure):
    _fields_ = (
        ("slots", _U64),
        ("index_entries", _U64),
        ("hash_key", _U64),
        ("slots_per_source", _U64),
        ("reordering_ns", _I64),
        ("values_per_chunk", _U32),
        ("max_batch", _U32),
        ("number_format", _U8),
        ("drop_late", _U8),
        ("evict_old", _U8),
        ("zero", _U8 * 5),
    )


class _Capabilities(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 32),
        ("kind", ctypes.c_char * 16),
        ("max_slots", _U64),
        ("max_values_per_chunk", _U32),
        ("max_batch", _U32),
        ("max_rounds", _U32),
        ("number_formats", _U32),
        ("collision_policies", _U32),
        ("max_contributors", _U32),
    )


class _Counters(ctypes.Structure):
    _fields_ = tuple((field.name, _U64) for field in fields(Counters))


class _Stats(ctypes.Structure):
    _fields_ = (("counters", _Counters), ("slots_in_use", _U64), ("high_water_slots", _U64))


_STATUS = {
    1: "the engine refuses its configuration; see its capabilities",
    2: "there is not enough memory for the slots; ask for fewer",
    3: "the round is announced already; drop it first",
    4: "the round is not announced",
    5: "too many rounds are announced; drop one first",
}
_SIGNATURES = {
    "tb_abi_version": (_U32, []),
    "tb_capabilities": (None, [ctypes.c_void_p]),
    "tb_open": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
    "tb_close": (None, [ctypes.c_void_p]),
    "tb_reset": (None, [ctypes.c_void_p]),
    "tb_set_clique": (ctypes.c_int, [ctypes.c_void_p, _U32, _U32, _U32, _U64, _I64]),
    "tb_drop_clique": (ctypes.c_int, [ctypes.c_void_p, _U32, _U32, _U32, ctypes.c_void_p]),
    "tb_submit": (ctypes.c_size_t, [ctypes.c_void_p] * 3 + [ctypes.c_size_t] * 2 + [_I64]),
    "tb_poll": (ctypes.c_size_t, [ctypes.c_void_p] * 3 + [ctypes.c_size_t] * 2 + [_I64]),
    "tb_next_deadline_ns": (_I64, [ctypes.c_void_p]),
    "tb_flush": (None, [ctypes.c_void_p, _I64]),
    "tb_stats": (None, [ctypes.c_void_p, ctypes.c_void_p]),
    "tb_take_high_water": (_U64, [ctypes.c_void_p]),
}
_NEVER = (1 << 63) - 1
_NO_CAP = (1 << 64) - 1


def native_library() -> Path | None:
    """Where the built engine `native` is; None if this installation has not built it."""
    spec = find_spec(_NATIVE_MODULE)
    return Path(spec.origin) if spec is not None and spec.origin else None


def native_engine() -> "LibraryEngine":
    """Engine `native`. Raises EngineError if it is not built."""
    library = native_library()
    if library is None:
        raise EngineError("engine 'native' is not built; install the project with a C compiler, or use 'numpy'")
    return LibraryEngine(library)


class LibraryEngine:
    """An engine in a shared library; see aggregator.engine.Engine for what each call does."""

    def __init__(self, path: Path):
        """Load the library. Raises EngineError if it is no engine of this ABI version."""
        try:
            self._library = ctypes.CDLL(str(path.absolute()))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(self._library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise EngineError(f"engine {path}: not an engine library ({error}); see testbed_engine.h") from error
        version = self._library.tb_abi_version()
        if version != ABI_VERSION:
            raise EngineError(f"engine {path}: has ABI version {version}, not {ABI_VERSION}; build it again")
        self._engine = ctypes.c_void_p()
        # ctypes structures by the identity of their batch, which the tuple keeps alive.
        self._batches: dict[int, tuple[HeaderBatch, int, CHeaders]] = {}
        self._submitted: NDArray[np.int32] | None = None
        self._submitted_rows = (0, 0)
        self._polled: NDArray[np.int32] | None = None
        self._polled_rows = (0, 0)

    def capabilities(self) -> Capabilities:
        said = _Capabilities()
        self._library.tb_capabilities(ctypes.byref(said))
        return Capabilities(
            name=said.name.decode(),
            kind=said.kind.decode(),
            number_formats=tuple(i for i in range(32) if said.number_formats >> i & 1),
            collision_policies=tuple(
                name for i, name in enumerate(_COLLISION_POLICIES) if said.collision_policies >> i & 1
            ),
            max_slots=said.max_slots,
            max_values_per_chunk=said.max_values_per_chunk,
            index_ways=INDEX_WAYS,
            max_contributors=said.max_contributors,
            max_batch=said.max_batch,
            max_rounds=said.max_rounds,
        )

    def open(self, config: EngineConfig) -> None:
        check_config(config, self.capabilities())
        self.close()
        said = _Config(
            slots=config.slots,
            index_entries=config.index_entries,
            hash_key=config.hash_key,
            slots_per_source=_NO_CAP if config.slots_per_source is None else config.slots_per_source,
            reordering_ns=config.reordering_ns,
            values_per_chunk=config.values_per_chunk,
            max_batch=config.max_batch,
            number_format=config.number_format,
            drop_late=config.late_policy == "drop",
            evict_old=config.collision_policy == "evict-old",
        )
        _check(self._library.tb_open(ctypes.byref(said), ctypes.byref(self._engine)))

    def close(self) -> None:
        if self._engine:
            self._library.tb_close(self._engine)
            self._engine = ctypes.c_void_p()
        self._batches.clear()

    def reset(self) -> None:
        self._library.tb_reset(self._engine)

    def set_clique(self, job: int, epoch: int, round_number: int, expected: int, deadline_ns: int) -> None:
        check_clique(expected, deadline_ns)
        _check(self._library.tb_set_clique(self._engine, job, epoch, round_number, expected, deadline_ns))

    def drop_clique(self, job: int, epoch: int, round_number: int) -> Counters:
        said = _Counters()
        _check(self._library.tb_drop_clique(self._engine, job, epoch, round_number, ctypes.byref(said)))
        return _counters(said)

    def submit(self, headers: HeaderBatch, payloads: NDArray[np.int32], count: int, now_ns: int) -> int:
        # Callers submit from the same array over and over, and asking numpy for an address takes as long as the call.
        if payloads is not self._submitted:
            self._submitted, self._submitted_rows = payloads, _rows(payloads)
        address, stride = self._submitted_rows
        accepted: int = self._library.tb_submit(self._engine, self._batch(headers), address, stride, count, now_ns)
        return accepted

    def poll(self, headers: HeaderBatch, payloads: NDArray[np.int32], now_ns: int) -> int:
        if payloads is not self._polled:
            self._polled, self._polled_rows = payloads, _rows(payloads)
        address, stride = self._polled_rows
        count: int = self._library.tb_poll(self._engine, self._batch(headers), address, stride, len(payloads), now_ns)
        return count

    def next_deadline_ns(self) -> int | None:
        deadline_ns: int = self._library.tb_next_deadline_ns(self._engine)
        return None if deadline_ns == _NEVER else deadline_ns

    def flush(self, now_ns: int) -> None:
        self._library.tb_flush(self._engine, now_ns)

    def stats(self) -> Stats:
        said = _Stats()
        self._library.tb_stats(self._engine, ctypes.byref(said))
        return Stats(_counters(said.counters), said.slots_in_use, said.high_water_slots)

    def take_high_water(self) -> int:
        high_water: int = self._library.tb_take_high_water(self._engine)
        return high_water

    def addresses(self) -> dict[str, int | None]:
        """The open engine and the calls that a loop in C makes, by their names in `struct tb_edge`."""
        calls = {
            "submit": "tb_submit",
            "poll": "tb_poll",
            "next_deadline_ns": "tb_next_deadline_ns",
            "take_high_water": "tb_take_high_water",
        }
        found = {name: ctypes.cast(self._library[call], ctypes.c_void_p).value for name, call in calls.items()}
        return {"engine": self._engine.value, **found}

    def _batch(self, headers: HeaderBatch) -> int:
        """Address of the batch's arrays, as the library wants them."""
        known = self._batches.get(id(headers))
        if known is None:
            structure = c_headers(headers)
            known = self._batches[id(headers)] = (headers, ctypes.addressof(structure), structure)
        return known[1]


def _check(status: int) -> None:
    if status:
        raise EngineError(_STATUS.get(status, f"the engine reports error {status}"))


def _counters(said: _Counters) -> Counters:
    return Counters(**{field.name: getattr(said, field.name) for field in fields(Counters)})


def _rows(payloads: NDArray[np.int32]) -> tuple[int, int]:
    """Address of the first row, and values from row to row."""
    address: int = payloads.__array_interface__["data"][0]
    return address, payloads.strides[0] // _VALUE_BYTES
