"""The exchange between an island's hosts: each sends what it has received, its shard, to every other one.

Over TCP on the island's LAN, not on the WAN: a round's completion does not count it, it is measured apart. A message
is a header and a shard's sums and bitmaps. A host connects to those before it in number, and takes connections from
those after it, so there is one connection per pair.
"""

import errno
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

LAN_PORT = 47002
_HEADER = struct.Struct("!IIHQ")  # job, round, shard, bytes that follow
_HELLO = struct.Struct("!IH")  # job, shard of who connects
_PART_BYTES = 1 << 20
_CONNECT_TIMEOUT_S = 20.0
_RETRY_S = 0.02


@dataclass(frozen=True)
class Gathered:
    """A shard of a round, as another host has sent it."""

    round: int
    shard: int
    content: bytes


@dataclass
class _Peer:
    """The connection to one other host."""

    connection: socket.socket
    outgoing: deque[memoryview] = field(default_factory=deque)
    incoming: bytearray = field(default_factory=bytearray)


class Lan:
    """One host's connections to the others of its island."""

    def __init__(self, job: int, shard: int, addresses: Sequence[str]) -> None:
        """Connect with all others; `addresses` are the hosts', by shard. Raises OSError."""
        self._job = job
        self._shard = shard
        self._peers: dict[int, _Peer] = {}
        if len(addresses) == 1:
            return
        deadline = time.monotonic() + _CONNECT_TIMEOUT_S
        with socket.create_server((addresses[shard], LAN_PORT), backlog=len(addresses)) as server:
            for other in range(shard):
                self._add(other, _connect(addresses[other], deadline))
                self._peers[other].connection.sendall(_HELLO.pack(job, shard))
            for _ in range(shard + 1, len(addresses)):
                server.settimeout(max(deadline - time.monotonic(), _RETRY_S))
                connection, _ = server.accept()
                connection.settimeout(max(deadline - time.monotonic(), _RETRY_S))
                their_job, other = _HELLO.unpack(_exactly(connection, _HELLO.size))
                if their_job != job:
                    raise OSError(errno.EPROTO, "a host of another run has connected")
                self._add(other, connection)
        for peer in self._peers.values():
            peer.connection.setblocking(False)

    def _add(self, other: int, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peers[other] = _Peer(connection)

    def interests(self) -> dict[int, int]:
        """What to poll for, by file descriptor."""
        return {
            peer.connection.fileno(): select.POLLIN | (select.POLLOUT if peer.outgoing else 0)
            for peer in self._peers.values()
        }

    def offer(self, round_number: int, content: bytes) -> None:
        """Send this host's shard of a round to all others, as fast as they take it."""
        header = _HEADER.pack(self._job, round_number, self._shard, len(content))
        for peer in self._peers.values():
            peer.outgoing += [memoryview(header), memoryview(content)]
            _send(peer)

    def serve(self) -> list[Gathered]:
        """Send and take in what can be; returns the shards that are whole. Raises OSError if a host is gone."""
        whole = []
        for peer in self._peers.values():
            _send(peer)
            while True:
                try:
                    part = peer.connection.recv(_PART_BYTES)
                except BlockingIOError:
                    break
                if not part:
                    raise OSError(errno.EPIPE, "another host of the island has ended")
                peer.incoming += part
            whole += self._take_whole(peer)
        return whole

    def _take_whole(self, peer: _Peer) -> list[Gathered]:
        whole = []
        while len(peer.incoming) >= _HEADER.size:
            job, round_number, shard, size = _HEADER.unpack_from(peer.incoming)
            if job != self._job:
                raise OSError(errno.EPROTO, "a host of another run has sent something")
            end = _HEADER.size + size
            if len(peer.incoming) < end:
                break
            whole.append(Gathered(round_number, shard, bytes(peer.incoming[_HEADER.size : end])))
            del peer.incoming[:end]
        return whole

    def close(self) -> None:
        for peer in self._peers.values():
            peer.connection.close()


def _send(peer: _Peer) -> None:
    while peer.outgoing:
        try:
            sent = peer.connection.send(peer.outgoing[0])
        except BlockingIOError:
            return
        if sent == len(peer.outgoing[0]):
            peer.outgoing.popleft()
        else:
            peer.outgoing[0] = peer.outgoing[0][sent:]


def _connect(address: str, deadline: float) -> socket.socket:
    """Connect to a host that may still be starting."""
    while True:
        try:
            return socket.create_connection((address, LAN_PORT), timeout=_CONNECT_TIMEOUT_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise OSError(errno.EPIPE, "another host of the island has ended")
        received += part
    return received
