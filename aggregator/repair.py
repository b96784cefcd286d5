"""Sending again what hosts have missed of their streams: requests (NACKs), repairs, heartbeats.

Bounded on every side, since a request of one small packet asks for up to 64 large ones: only a host of a shard may ask,
for its own stream; it has a budget of requests; a packet is repaired once in `repair_interval_ns` at most; repairs get
half of the line. aggregator/native/repair.c does the same for the loop in C, on the same memory.
"""

import ctypes
import socket
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from aggregator.results import NEVER_NS, ResultStreams
from aggregator.wire.packet import MAP_BITS, Header, Kind, PacketError, parse_packet

COUNTS = ("nacks", "nacks_limited", "repairs", "repair_bytes", "repairs_refused", "gone", "gone_answers", "heartbeats")
REASONS = ("admitted", "length", "magic", "version", "kind", "checksum", "group", "source", "epoch", "tag", "stream")
_QUEUE = 256
_BATCH = 16
_SHARE = 0.5
_REQUESTS_AT_ONCE = 32
_LONGEST_BEAT = 8
_REQUEST_BYTES = 128
_NUMBERS = 1 << 32


class RepairState(ctypes.Structure):
    """Where repairs stand; shared with the loop in C (`struct tb_repairs` of aggregator/native/repair.h)."""

    _fields_ = (
        ("queue", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("refused", ctypes.c_void_p),
        ("whole_ns", ctypes.c_double),
        ("share", ctypes.c_double),
        ("interval_ns", ctypes.c_int64),
        ("requests_at_once", ctypes.c_uint32),
        ("job", ctypes.c_uint32),
        ("shards", ctypes.c_uint32),
        ("head", ctypes.c_uint32),
        ("waiting", ctypes.c_uint32),
        ("fd", ctypes.c_int32),
    )


class Repairs:
    """The repairs of one edge. `requests` is the socket where hosts ask for them."""

    def __init__(
        self, requests: socket.socket, results: ResultStreams, job: int, interval_ns: int, key: bytes | None = None
    ):
        self._socket = requests
        self._results = results
        self._job = job
        self._key = key
        self._queue: NDArray[np.uint64] = np.zeros(_QUEUE, np.uint64)
        self._counts: NDArray[np.uint64] = np.zeros(len(COUNTS), np.uint64)
        self._refused: NDArray[np.uint64] = np.zeros(len(REASONS), np.uint64)
        self._buffer = memoryview(bytearray(_REQUEST_BYTES))
        self.state = RepairState(
            queue=self._queue.ctypes.data,
            counts=self._counts.ctypes.data,
            refused=self._refused.ctypes.data,
            share=_SHARE,
            interval_ns=interval_ns,
            requests_at_once=_REQUESTS_AT_ONCE,
            job=job,
            shards=len(results.destinations),
            fd=requests.fileno(),
        )

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def counts(self) -> Counter[str]:
        """What has happened so far, by the names in COUNTS."""
        return Counter(dict(zip(COUNTS, self._counts.tolist(), strict=True)))

    def refused(self) -> Counter[str]:
        """How many requests have been refused so far, by reason."""
        counts = dict(zip(REASONS, self._refused.tolist(), strict=True))
        return Counter({reason: count for reason, count in counts.items() if count})

    def take_requests(self, now_ns: int) -> None:
        """Take what waits at the socket, at most _BATCH requests."""
        for _ in range(_BATCH):
            try:
                size, (source, _) = self._socket.recvfrom_into(self._buffer)
            except BlockingIOError:
                return
            self.request(self._buffer[:size], source, now_ns)

    def request(self, datagram: memoryview, source: str, now_ns: int) -> str:
        """Do what a request asks; returns why it was refused, or `admitted`."""
        try:
            header = parse_packet(datagram, self._key)
        except PacketError as error:
            reason = error.refusal.name.lower()
        else:
            reason = self._check(header, source)
        if reason == REASONS[0]:
            self._answer(header, now_ns)
        else:
            self._refused[REASONS.index(reason)] += 1
        return reason

    def _check(self, header: Header, source: str) -> str:
        hosts = self._results.destinations
        if (
            header.shard >= len(hosts)
            or hosts[header.shard][0] != source
            or header.source != self._results.state.island_id
        ):
            return "source"
        if header.job != self._job:
            return "epoch"
        if header.kind is not Kind.NACK:
            return "kind"
        if header.value_count or not header.bitmap & 1 or header.contributors != header.bitmap.bit_count():
            return "length"
        return REASONS[0] if header.stream == self._results.state.stream else "stream"

    def _count(self, name: str, by: int = 1) -> None:
        self._counts[COUNTS.index(name)] += by

    def _answer(self, request: Header, now_ns: int) -> None:
        state, results = self.state, self._results
        stream = results.streams[request.shard]
        if stream.whole_ns - now_ns > (state.requests_at_once - 1) * state.interval_ns:
            self._count("nacks_limited")
            return
        stream.whole_ns = max(stream.whole_ns, now_ns) + state.interval_ns
        self._count("nacks")
        results.release_old(now_ns)
        gone = 0
        for bit in range(MAP_BITS):
            if not request.bitmap >> bit & 1:
                continue
            number = (request.number + bit) % _NUMBERS
            if (number - stream.unsent) % _NUMBERS < _NUMBERS // 2:
                self._count("repairs_refused")
                continue
            row = results.find_held(request.shard, number)
            if row is None:
                gone |= 1 << bit
            elif now_ns - int(results.asked_ns[row]) < state.interval_ns or state.waiting == _QUEUE:
                self._count("repairs_refused")
            else:
                results.asked_ns[row] = now_ns
                self._queue[(state.head + state.waiting) % _QUEUE] = request.shard << 32 | number
                state.waiting += 1
        if gone:
            self._count("gone", gone.bit_count())
            self._count("gone_answers")
            answer = self._small(Kind.GONE, request.shard, request.epoch, request.round, request.number)
            answer.bitmap, answer.contributors = gone, gone.bit_count()
            results.send_small(answer)

    def _small(self, kind: Kind, shard: int, epoch: int, round_number: int, number: int) -> Header:
        return Header(
            kind=kind,
            source=self._results.state.island_id,
            job=self._job,
            epoch=epoch,
            round=round_number,
            shard=shard,
            chunk=0,
            value_count=0,
            number=number,
            contributors=0,
            stream=self._results.state.stream,
        )

    def send(self, now_ns: int) -> None:
        """Send again what may go now, and heartbeats that are due."""
        self._send_queued(now_ns)
        for shard, stream in enumerate(self._results.streams):
            if stream.beat_ns <= now_ns:
                self._beat(shard, now_ns)

    def _send_queued(self, now_ns: int) -> None:
        state, results = self.state, self._results
        while state.waiting and self._next_queued_ns() <= now_ns:
            shard, number = divmod(int(self._queue[state.head]), _NUMBERS)
            row = results.find_held(shard, number)
            if row is not None:
                on_wire = results.flag_retransmitted(row)
                if not results.send_row(row, now_ns):
                    return
                state.whole_ns = max(state.whole_ns, now_ns) + on_wire * results.state.ns_per_byte / state.share
                self._count("repairs")
                self._count("repair_bytes", on_wire)
            state.head = (state.head + 1) % _QUEUE
            state.waiting -= 1

    def _beat(self, shard: int, now_ns: int) -> None:
        """Tell a host where its stream stands: the quieter it has been, the rarer."""
        results, stream = self._results.state, self._results.streams[shard]
        quiet_ns = now_ns - stream.last_ns
        # What is not held any more nobody can ask for.
        over = quiet_ns > results.window_ns
        stream.beat_ns = NEVER_NS if over else now_ns + min(quiet_ns, _LONGEST_BEAT * results.heartbeat_ns)
        self._count("heartbeats")
        last = (stream.unsent - 1) % _NUMBERS
        self._results.send_small(self._small(Kind.HEARTBEAT, shard, stream.epoch, stream.round, last))

    def _next_queued_ns(self) -> float:
        shared_ns = float(self.state.whole_ns - self._results.state.ahead_ns)
        return max(shared_ns, self._results.next_line_ns())

    def next_ns(self) -> float:
        """When `send` has something to do; infinite: not before something else happens."""
        queued_ns = self._next_queued_ns() if self.state.waiting else float("inf")
        return min(queued_ns, *(float(stream.beat_ns) for stream in self._results.streams))
