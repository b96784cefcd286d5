"""The receiving half of a data plane: a round's results and contributions, merged into the exchange area.

In C (agents/native/receive.c), so that packets that come in their turn do not wake the interpreter; what is done with
each is written in plain Python in tests/unit/agents/plain_receiver.py.
"""

import ctypes
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from agents.shard import Shard
from aggregator.wire.buffers import enlarge_receive_buffer
from aggregator.wire.packet import HEADER_BYTES, RESULT_PORT, VALUE_BYTES, Header, read_header

_BATCH = 64
_ALIGNMENT = 64
_NATIVE_MODULE = "agents._receiver"
_LONGEST_WAIT_NS = 60 * 10**9
_U32, _U64, _I32, _I64, _POINTER = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p

# A Linux value that Python's socket module does not name.
_SO_TIMESTAMPNS = 35


def open_receiver(address: str, port: int = RESULT_PORT) -> socket.socket:
    """A non-blocking socket for what the edge sends to the host with `address`; the kernel stamps what arrives.

    Raises OSError.
    """
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    enlarge_receive_buffer(receiver)
    receiver.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    receiver.bind((address, port))
    receiver.setblocking(False)
    return receiver


@dataclass
class Counts:
    """What came in during a round. `complete`, `partial`, `bypassed` and `fetched` were merged; others were dropped.

    `duplicates` bring no contributor that is not there already, `overlaps` bring some that are and some that are not,
    `late` are of an earlier round or came after this one was reported, `refused` are not for this host and round.
    `repaired` counts contributions, in chunks, that were merged from packets that had been sent again.
    """

    complete: int = 0
    partial: int = 0
    bypassed: int = 0
    fetched: int = 0
    duplicates: int = 0
    overlaps: int = 0
    late: int = 0
    refused: int = 0
    repaired: int = 0


class Tell(IntEnum):
    """Of which packets that are merged the receiver shall tell: of none, from a sum that was given up on, of all."""

    NONE = 0
    GIVEN_UP = 1
    ALL = 2


class Why(IntFlag):
    """Why the receiver tells of a packet: it was not in its turn in the edge's stream; it was merged."""

    PLACE = 1
    MERGED = 2


class _Peer(ctypes.Structure):
    _fields_ = (("address", _U32), ("island", _U32))


class _Host(ctypes.Structure):
    """`struct tb_host` of agents/native/receive.h."""

    _fields_ = (
        ("key", ctypes.c_char_p),
        *((name, _POINTER) for name in ("peers", "rows", "counts", "told", "told_why")),
        *((name, _POINTER) for name in ("summed", "bitmaps", "have", "waits_ns")),
        *((name, _U64) for name in ("expected", "stride")),
        *((name, _I64) for name in ("now_ns", "clock_offset_ns", "empty_ns", "last_arrival_ns")),
        *((name, _U32) for name in ("job", "island", "shard", "number_format", "values", "values_per_chunk")),
        *((name, _U32) for name in ("peer_count", "edge_address", "epoch", "round", "missing", "merges")),
        *((name, _U32) for name in ("tell", "told_count", "stream", "next", "trailing_edge", "turns", "unsure")),
        ("fd", _I32),
    )


def _library() -> ctypes.CDLL:
    """Raises ImportError if the native parts are not built."""
    spec = find_spec(_NATIVE_MODULE)
    if spec is None or spec.origin is None:
        raise ImportError(f"{_NATIVE_MODULE} is not built; install the project with a C compiler")
    library = ctypes.CDLL(spec.origin)
    library.tb_host_wait.argtypes = [ctypes.c_void_p, ctypes.c_int, _I64]
    return library


def _network_order(address: str) -> int:
    """An IPv4 address as the integer whose bytes in memory are the address."""
    return int(np.frombuffer(socket.inet_aton(address), np.uint32)[0])


class Receiver:
    """Takes in what comes to one host, through all rounds; between two of them nothing is merged.

    Counts are those since the round before was ended.
    """

    def __init__(
        self,
        sock: socket.socket,
        shard: Shard,
        edge_address: str,
        peers: Mapping[str, int],
        number_format: int = 0,
        key: bytes | None = None,
    ) -> None:
        """`sock` as of `open_receiver`; `peers`: island ids by address, of the hosts that may be fetched from.

        With a `key`, packets must have tags that were made with it.
        """
        self.chunks = shard.chunks
        self.expected = 0
        self._library = _library()
        longest = HEADER_BYTES + VALUE_BYTES * min(shard.values_per_chunk, shard.values)
        stride = -(-longest // _ALIGNMENT) * _ALIGNMENT
        # What the structure only holds addresses of.
        self._sock = sock
        self._peers = (_Peer * len(peers))(
            *(_Peer(_network_order(address), island) for address, island in peers.items())
        )
        self._rows: NDArray[np.uint8] = np.zeros((_BATCH, stride), np.uint8)
        self._counts: NDArray[np.uint64] = np.zeros(len(fields(Counts)), np.uint64)
        self._told: NDArray[np.uint8] = np.zeros((_BATCH, HEADER_BYTES), np.uint8)
        self._told_why: NDArray[np.uint8] = np.zeros(_BATCH, np.uint8)
        self._have: NDArray[np.uint64] = np.zeros(shard.chunks, np.uint64)
        self._waits_ns: NDArray[np.int64] = np.zeros(0, np.int64)
        self._area: tuple[NDArray[np.int32], NDArray[np.uint64]] | None = None
        self._host = _Host(
            key=key,
            peers=ctypes.addressof(self._peers),
            rows=self._rows.ctypes.data,
            counts=self._counts.ctypes.data,
            told=self._told.ctypes.data,
            told_why=self._told_why.ctypes.data,
            have=self._have.ctypes.data,
            stride=stride,
            empty_ns=time.monotonic_ns(),
            job=shard.job,
            island=shard.island_id,
            shard=shard.number,
            number_format=number_format,
            values=shard.values,
            values_per_chunk=shard.values_per_chunk,
            peer_count=len(peers),
            edge_address=_network_order(edge_address),
            fd=sock.fileno(),
        )

    def begin(
        self,
        epoch: int,
        round_number: int,
        expected: int,
        summed: NDArray[np.int32],
        bitmaps: NDArray[np.uint64],
    ) -> None:
        """A round is at hand. `expected` is the bitmap of the contributors that shall reach every chunk.

        `summed` and `bitmaps` are the shard's part of the round's row in the exchange area; they are set to zero.
        """
        summed[:] = 0
        bitmaps[:] = 0
        self._have[:] = 0
        self._area = summed, bitmaps
        # Each packet that is merged brings at least one contributor that was not there.
        self._waits_ns = np.zeros(self.chunks * expected.bit_count(), np.int64)
        self.expected = expected
        host = self._host
        host.epoch, host.round, host.expected = epoch, round_number, expected
        host.summed, host.bitmaps, host.waits_ns = summed.ctypes.data, bitmaps.ctypes.data, self._waits_ns.ctypes.data
        host.missing = self.chunks if expected else 0
        host.merges = host.last_arrival_ns = 0

    def end(self) -> Counts:
        """The round is over, and its memory the trainer's again; returns what was counted."""
        self._area = None
        self._host.summed = self._host.bitmaps = None
        counts = Counts(*self._counts.tolist())
        self._counts[:] = 0
        return counts

    def wait(self, other_fd: int, until_ns: float, tell: Tell) -> bool:
        """Take in what comes until `until_ns`, until `other_fd` is readable, or until there is news. Raises OSError.

        News is something to be told, or that the round's last chunk has become complete. Returns whether `other_fd` is
        readable. What has been told before must have been looked at.
        """
        latest_ns = time.monotonic_ns() + _LONGEST_WAIT_NS
        self._host.tell = tell
        outcome: int = self._library.tb_host_wait(
            ctypes.addressof(self._host), other_fd, latest_ns if until_ns > latest_ns else int(until_ns)
        )
        if outcome < 0:
            raise OSError(-outcome, f"receiving results: {os.strerror(-outcome)}")
        return bool(outcome)

    def take_turns(self) -> tuple[int, int] | None:
        """The number after the last packet that came in its turn, and its trailing edge; None: none has since."""
        host = self._host
        if not host.turns:
            return None
        host.turns = 0
        return host.next, host.trailing_edge

    def told(self) -> list[tuple[Header, Why]]:
        """What the last batch tells, after the packets that came in their turn, in the order of arrival."""
        count = self._host.told_count
        return [
            (read_header(head.data), Why(why))
            for head, why in zip(self._told[:count], self._told_why[:count].tolist(), strict=True)
        ]

    def follow(self, stream: int, next_number: int) -> None:
        """It is the turn of this number of this stream now."""
        self._host.stream, self._host.next = stream, next_number

    @property
    def batch_ns(self) -> int:
        """When the last batch was read."""
        now_ns: int = self._host.now_ns
        return now_ns

    @property
    def complete(self) -> bool:
        """Whether every chunk has all of its expected contributors."""
        return bool(self._host.missing == 0)

    @property
    def have(self) -> NDArray[np.uint64]:
        """The contributors that are in the sums, a bitmap for each chunk."""
        return self._have

    @property
    def delivered(self) -> int:
        """Contributions that are in the sums, counted in chunks."""
        return sum(bitmap.bit_count() for bitmap in self._have.tolist())

    @property
    def last_arrival_ns(self) -> int:
        """When the packet arrived that was merged last, by the kernel's stamp; 0: none was."""
        arrival_ns: int = self._host.last_arrival_ns
        return arrival_ns

    @property
    def waits_ns(self) -> NDArray[np.int64]:
        """How long each packet that was merged had waited at the socket."""
        return self._waits_ns[: self._host.merges]
