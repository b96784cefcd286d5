"""The edge's way in: batches of admitted contributions from a socket.

In C, with one call of the kernel for a batch; and the same in Python, which tests hold the C against.
"""

import ctypes
import ipaddress
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aggregator import sockets
from aggregator.admission import Admission, Shape
from aggregator.engine import HeaderBatch, empty_headers
from aggregator.native import load_library
from aggregator.rows import datagram_rows, payload_rows
from aggregator.sockets import network_order
from aggregator.wire.packet import Kind, probe_sent_ns

BATCH = 64
REASONS = ("admitted", "length", "magic", "version", "kind", "checksum", "group", "source", "epoch")
_U8, _U32, _U64, _I64 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64


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
        """Take up to BATCH datagrams; how many contributions are among them, and whether the socket is empty now."""
        ...

    def datagram(self, row: int) -> memoryview:
        """The whole datagram of a row that the last `receive` has filled."""
        ...

    def take_probes(self) -> list[Probe]:
        """Probes that have arrived since the last call."""
        ...

    def refused(self) -> Counter[str]:
        """How many datagrams have been refused so far, by reason."""
        ...


class PythonReceiver:
    """The reference: datagram by datagram."""

    def __init__(self, sock: socket.socket, shape: Shape):
        self._socket = sock
        self._admission = Admission(shape)
        memory = datagram_rows(BATCH, shape.values_per_chunk)
        self._rows = [memoryview(row) for row in memory]
        self._sizes = [0] * BATCH
        self._probes: list[Probe] = []
        self.headers = empty_headers(BATCH)
        self.payloads = payload_rows(memory, shape.values_per_chunk)

    def allow(self, flows: Iterable[tuple[str, str]]) -> None:
        self._admission.allow(flows)

    def receive(self) -> tuple[int, bool]:
        count = 0
        headers = self.headers
        for _ in range(BATCH):
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
        ("shard_values", ctypes.c_void_p),
        ("flows", ctypes.c_void_p),
    )


class _Probe(ctypes.Structure):
    _fields_ = (("sent_ns", _U64), ("arrival_ns", _I64), ("probe", _U32), ("group", _U32))


class _Headers(ctypes.Structure):
    _fields_ = tuple((field.name, ctypes.c_void_p) for field in fields(HeaderBatch))


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


class NativeReceiver:
    """The receiver in C, which edges use. Raises OSError if it is not built."""

    def __init__(self, sock: socket.socket, shape: Shape):
        self._receive = load_library().tb_receive
        self._shape = NativeShape(shape)
        self._memory = datagram_rows(BATCH, shape.values_per_chunk)
        self._rows = [memoryview(row) for row in self._memory]
        self._sizes: NDArray[np.uint32] = np.zeros(BATCH, np.uint32)
        self._probes = (_Probe * BATCH)()
        self._probe_count, self._taken = _U32(), _U32()
        self._refused: NDArray[np.uint64] = np.zeros(len(REASONS), np.uint64)
        self._waiting: list[Probe] = []
        self.headers = empty_headers(BATCH)
        self.payloads = payload_rows(self._memory, shape.values_per_chunk)
        addresses = {field.name: getattr(self.headers, field.name).ctypes.data for field in fields(HeaderBatch)}
        self._headers = _Headers(**addresses)
        self._arguments = (
            sock.fileno(),
            ctypes.addressof(self._shape.structure),
            self._memory.ctypes.data,
            self._memory.strides[0],
            ctypes.addressof(self._headers),
            self._sizes.ctypes.data,
            ctypes.addressof(self._probes),
            ctypes.addressof(self._probe_count),
            self._refused.ctypes.data,
            ctypes.addressof(self._taken),
        )

    def allow(self, flows: Iterable[tuple[str, str]]) -> None:
        self._shape.allow(flows)

    def receive(self) -> tuple[int, bool]:
        count: int = self._receive(*self._arguments)
        if count < 0:
            raise OSError(ctypes.get_errno(), "receiving contributions")
        for i in range(self._probe_count.value):
            said = self._probes[i]
            group = str(ipaddress.IPv4Address(said.group))
            self._waiting.append(Probe(said.probe, group, said.sent_ns, said.arrival_ns))
        return count, self._taken.value < BATCH

    def datagram(self, row: int) -> memoryview:
        return self._rows[row][: int(self._sizes[row])]

    def take_probes(self) -> list[Probe]:
        probes, self._waiting = self._waiting, []
        return probes

    def refused(self) -> Counter[str]:
        counts: Mapping[str, int] = dict(zip(REASONS, self._refused.tolist(), strict=True))
        return Counter({reason: count for reason, count in counts.items() if count})
