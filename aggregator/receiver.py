"""The edge's way in: batches of admitted contributions from a socket, in C where that is built and in Python elsewhere.

Both do the same (tests/unit/aggregator/test_admission.py); the C one takes a batch with one call of the kernel.
"""

import ctypes
import ipaddress
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aggregator import sockets
from aggregator.admission import Admission, Shape
from aggregator.c_headers import c_headers
from aggregator.engine import HeaderBatch, empty_headers
from aggregator.repair import REASONS
from aggregator.results import datagram_rows, payload_rows
from aggregator.wire.packet import Kind, probe_sent_ns

BATCH = 64
_BATCH_BYTES = 128 << 10
_NATIVE_MODULE = "aggregator._receive"
_U8, _U32, _U64, _I64 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64


def batch_of(stride: int) -> int:
    """How many datagrams one call of `receive` takes, in rows of `stride` bytes: fewer of large ones.

    They would leave the cache before they are added.
    """
    return min(max(1, _BATCH_BYTES // stride), BATCH)


@dataclass(frozen=True)
class Probe:
    """A probe that has arrived; `group` is what the packet says it was sent to."""

    probe: int
    group: str
    sent_ns: int
    arrival_ns: int


class Receiver(Protocol):
    """`receive` fills the first rows of `headers` and of `payloads` (shape (BATCH, values_per_chunk))."""

    headers: HeaderBatch
    payloads: NDArray[np.int32]

    def allow(self, flows: Iterable[tuple[str, str]]) -> None:
        """Admit exactly these (group, source address) pairs from now on."""
        ...

    def receive(self) -> tuple[int, bool]:
        """Take a batch of datagrams at most; how many contributions are in it, and whether the socket is empty now."""
        ...

    def datagram(self, row: int) -> memoryview:
        """The whole datagram of a row that the last `receive` has filled."""
        ...

    def take_probes(self) -> list[Probe]:
        """The probes among what the last `receive` took."""
        ...

    def refused(self) -> Counter[str]:
        """How many datagrams have been refused so far, by reason."""
        ...


class PythonReceiver:
    """The receiver where nothing is built."""

    def __init__(self, sock: socket.socket, shape: Shape):
        self._socket = sock
        self._admission = Admission(shape)
        memory = datagram_rows(BATCH, shape.values_per_chunk)
        self._rows = [memoryview(row) for row in memory]
        self._batch = batch_of(memory.strides[0])
        self._sizes = [0] * BATCH
        self._probes: list[Probe] = []
        self.headers = empty_headers(BATCH)
        self.payloads = payload_rows(memory, shape.values_per_chunk)

    def allow(self, flows: Iterable[tuple[str, str]]) -> None:
        self._admission.allow(flows)

    def receive(self) -> tuple[int, bool]:
        count = 0
        headers = self.headers
        for _ in range(self._batch):
            row = self._rows[count]
            try:
                size, ancillary, _, (source_address, _) = self._socket.recvmsg_into([row], sockets.ANCILLARY_BYTES)
            except BlockingIOError:
                return count, True
            datagram = row[:size]
            header = self._admission.admit(datagram, source_address, sockets.destination(ancillary))
            if header is None:
                continue
            if header.kind is Kind.PROBE:
                group = str(ipaddress.IPv4Address(header.number))
                self._probes.append(Probe(header.chunk, group, probe_sent_ns(datagram), time.monotonic_ns()))
                continue
            headers.job[count] = header.job
            headers.epoch[count] = header.epoch
            headers.round[count] = header.round
            headers.shard[count] = header.shard
            headers.chunk[count] = header.chunk
            headers.value_count[count] = header.value_count
            headers.source[count] = header.source
            self._sizes[count] = size
            count += 1
        return count, False

    def datagram(self, row: int) -> memoryview:
        return self._rows[row][: self._sizes[row]]

    def take_probes(self) -> list[Probe]:
        probes, self._probes = self._probes, []
        return probes

    def refused(self) -> Counter[str]:
        return self._admission.refused.copy()


class _Flow(ctypes.Structure):
    _fields_ = (("group", _U32), ("source", _U32), ("contributor", _U8), ("zero", _U8 * 3))


class _Shape(ctypes.Structure):
    _fields_ = (
        ("job", _U32),
        ("values_per_chunk", _U32),
        ("shards", _U32),
        ("flow_count", _U32),
        ("number_format", _U32),
        ("zero", _U32),
        ("key", ctypes.c_char_p),
        ("shard_values", ctypes.c_void_p),
        ("flows", ctypes.c_void_p),
    )


class _Probe(ctypes.Structure):
    _fields_ = (("sent_ns", _U64), ("arrival_ns", _I64), ("probe", _U32), ("group", _U32))


def native_library() -> ctypes.CDLL | None:
    """The C receiver; None if this installation has not built it."""
    spec = find_spec(_NATIVE_MODULE)
    if spec is None or spec.origin is None:
        return None
    library = ctypes.CDLL(spec.origin, use_errno=True)
    library.tb_receive.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, ctypes.c_size_t, *[ctypes.c_void_p] * 6]
    library.tb_edge_run.argtypes = [ctypes.c_void_p]
    library.tb_check.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, _U32, _U32]
    library.tb_request.argtypes = [*[ctypes.c_void_p] * 2, ctypes.c_char_p, ctypes.c_size_t, _U32, _I64]
    return library


class NativeShape:
    """A `Shape` and its flows as the C code wants them; keeps the arrays alive that `structure` points to."""

    def __init__(self, shape: Shape):
        self._contributors = shape.contributors
        self._shard_values = (_U32 * len(shape.shard_values))(*shape.shard_values)
        self._flows: ctypes.Array[_Flow] = (_Flow * 0)()
        self.structure = _Shape(
            job=shape.job,
            values_per_chunk=shape.values_per_chunk,
            shards=len(shape.shard_values),
            number_format=shape.number_format,
            key=shape.key,
            shard_values=ctypes.addressof(self._shard_values),
        )

    def allow(self, flows: Iterable[tuple[str, str]]) -> None:
        known = [
            _Flow(group=network_order(group), source=network_order(source), contributor=self._contributors[source])
            for group, source in sorted(flows)
        ]
        self._flows = (_Flow * len(known))(*known)
        self.structure.flows = ctypes.addressof(self._flows)
        self.structure.flow_count = len(known)


def network_order(address: str) -> int:
    """An IPv4 address as the integer whose bytes in memory are the address."""
    return int(np.frombuffer(socket.inet_aton(address), np.uint32)[0])


class NativeReceiver:
    """The receiver in C."""

    def __init__(self, library: ctypes.CDLL, sock: socket.socket, shape: Shape):
        self._fd = sock.fileno()
        self._shape = NativeShape(shape)
        self._memory = datagram_rows(BATCH, shape.values_per_chunk)
        self._rows = [memoryview(row) for row in self._memory]
        self._batch = batch_of(self._memory.strides[0])
        self._sizes: NDArray[np.uint32] = np.zeros(BATCH, np.uint32)
        self._probes = (_Probe * BATCH)()
        self._probe_count, self._taken = _U32(), _U32()
        self._refused: NDArray[np.uint64] = np.zeros(len(REASONS), np.uint64)
        self.headers = empty_headers(BATCH)
        self.payloads = payload_rows(self._memory, shape.values_per_chunk)
        self._headers = c_headers(self.headers)
        self.library = library
        # In the order of `tb_receive`'s arguments, by their names in `struct tb_edge`.
        self.addresses: dict[str, int] = {
            "shape": ctypes.addressof(self._shape.structure),
            "rows": self._memory.ctypes.data,
            "stride": self._memory.strides[0],
            "in": ctypes.addressof(self._headers),
            "sizes": self._sizes.ctypes.data,
            "probes": ctypes.addressof(self._probes),
            "probe_count": ctypes.addressof(self._probe_count),
            "refused": self._refused.ctypes.data,
            "taken": ctypes.addressof(self._taken),
        }

    def fileno(self) -> int:
        return self._fd

    def allow(self, flows: Iterable[tuple[str, str]]) -> None:
        self._shape.allow(flows)

    def receive(self) -> tuple[int, bool]:
        count: int = self.library.tb_receive(self._fd, *self.addresses.values())
        if count < 0:
            raise OSError(ctypes.get_errno(), "receiving contributions")
        return count, self._taken.value < self._batch

    def datagram(self, row: int) -> memoryview:
        return self._rows[row][: int(self._sizes[row])]

    def take_probes(self) -> list[Probe]:
        arrived = self._probes[: self._probe_count.value]
        self._probe_count.value = 0
        return [
            Probe(probe.probe, str(ipaddress.IPv4Address(probe.group)), probe.sent_ns, probe.arrival_ns)
            for probe in arrived
        ]

    def refused(self) -> Counter[str]:
        counts: Mapping[str, int] = dict(zip(REASONS, self._refused.tolist(), strict=True))
        return Counter({reason: count for reason, count in counts.items() if count})


def make_receiver(sock: socket.socket, shape: Shape) -> Receiver:
    """The best receiver that this installation has."""
    library = native_library()
    return PythonReceiver(sock, shape) if library is None else NativeReceiver(library, sock, shape)
