"""The data-plane process of a host: sends the round's contribution on time, takes in what the edge sends.

    python -m agents.dataplane --control-fd N

Run control is docs/run-control.md. Nothing else happens here: no training, no garbage collection, and the sending
itself is in a native thread, so that a datagram leaves when it is due.
"""

import gc
import os
import select
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents._pacer import Pacer
from agents.exchange_area import ExchangeArea, map_exchange_area
from agents.receiving import RoundReceiver, open_receiver, overflows, receive_buffer_bytes
from agents.sending import RoundPackets, destination, open_sender, probe_packet, send_times_ns
from agents.shard import Shard, make_shard
from aggregator.wire.control import Channel, Message, inherited
from aggregator.wire.packet import HEADER_BYTES, PacketError, parse_packet
from aggregator.wire.tag import parse_key

PRIORITY = 4
PACER_PRIORITY = 40
_LONGEST_DATAGRAM = 65536
# Datagrams taken in before control and the clock are looked at again.
_BURST = 64


@dataclass(frozen=True)
class _Phase:
    """What this host does in one place of the schedule; no group: it sends nothing."""

    group: str | None
    offset_ns: int
    duration_ns: int
    expected: int


@dataclass
class _Round:
    """The round at hand, from `arm` until it is reported."""

    number: int
    phase: _Phase
    receiver: RoundReceiver
    started: bool = False
    sending: bool = False
    start_ns: int = 0
    give_up_ns: int = 0
    last_taken_ns: int = 0

    @property
    def when_nothing_came_ns(self) -> int:
        """The end of a round in which nothing was taken in: its start on an idle island, else when it was given up."""
        return self.give_up_ns if self.phase.expected else self.start_ns


class DataPlane:
    """One host: its sockets, its packets and the round at hand."""

    def __init__(
        self,
        channel: Channel,
        shard: Shard,
        address: str,
        area: ExchangeArea,
        number_format: int,
        key: bytes | None,
    ) -> None:
        """Raises OSError if the sockets cannot be had."""
        self._channel = channel
        self._shard = shard
        self._area = area
        self._number_format = number_format
        self._key = key
        self._packets = RoundPackets(shard, number_format, key)
        self._receiver = open_receiver(address)
        self._sender = open_sender(address)
        self._pacer = Pacer(self._sender.fileno(), PACER_PRIORITY)
        self._epochs: dict[int, list[_Phase]] = {}
        self._round: _Round | None = None
        self._buffer = memoryview(bytearray(_LONGEST_DATAGRAM))
        self._late = 0
        self._refused = 0
        self._overflows = 0
        self.realtime = _become_realtime() and self._pacer.realtime

    def close(self) -> None:
        self._pacer.close()
        self._sender.close()
        self._receiver.close()

    def serve(self) -> None:
        """Until `stop`, or until the run is gone. Raises ValueError, LookupError or OSError when it cannot go on."""
        poll = select.poll()
        for fd in (self._channel.fileno(), self._receiver.fileno(), self._pacer.done_fd):
            poll.register(fd, select.POLLIN)
        self._channel.send(
            "hello",
            pid=os.getpid(),
            realtime=self.realtime,
            receive_buffer_bytes=receive_buffer_bytes(self._receiver),
        )
        while True:
            ready = {fd for fd, _ in poll.poll(self._patience_ms())}
            if self._receiver.fileno() in ready:
                self._take_in()
            if self._pacer.done_fd in ready:
                self._finish_sending()
            if self._channel.fileno() in ready:
                message = self._channel.receive()
                if message is None or message["type"] == "stop":
                    return
                self._answer(message)
            self._report_if_done()

    def _patience_ms(self) -> float | None:
        if self._round is None or not self._round.started:
            return None
        # Rounded up: waking before the time would only mean to wait again.
        return max(0, (self._round.give_up_ns - time.monotonic_ns()) // 1_000_000 + 1)

    def _answer(self, message: Message) -> None:
        match message["type"]:
            case "epoch":
                self._epochs[message["epoch"]] = [
                    _Phase(phase["group"], phase["offset_ns"], phase["duration_ns"], phase["expected"])
                    for phase in message["phases"]
                ]
                self._channel.send("epoch_ready", epoch=message["epoch"])
            case "probe":
                sent = self._probe(message["epoch"], message["probe"])
                self._channel.send("probed", probe=message["probe"], sent=sent)
            case "arm":
                self._arm(message["round"], message["epoch"], message["phase"])
                self._channel.send("armed", round=message["round"])
            case "start":
                self._start(message["round"], message["start_ns"], message["give_up_ns"])
            case kind:
                raise ValueError(f"a data plane does not know the message {kind!r}")

    def _probe(self, epoch: int, probe: int) -> int:
        """Send a probe on each group of the epoch; returns how many."""
        groups = {phase.group for phase in self._epochs[epoch] if phase.group is not None}
        for group in sorted(groups):
            packet = probe_packet(self._shard, epoch, probe, group, time.monotonic_ns(), self._key)
            self._sender.sendto(packet, destination(group))
        return len(groups)

    def _arm(self, number: int, epoch: int, phase_number: int) -> None:
        if self._round is not None:
            raise ValueError(f"round {number} was armed while round {self._round.number} is not done")
        phase = self._epochs[epoch][phase_number]
        row = self._area.row(number)
        receiver = RoundReceiver(
            self._shard,
            (epoch, number),
            phase.expected,
            self._area.summed[row, self._shard.value_slice],
            self._area.bitmaps[row, self._shard.chunk_slice],
            self._number_format,
        )
        if phase.group is not None:
            self._packets.build(self._area.sent[row, self._shard.value_slice], epoch, number)
            self._sender.connect(destination(phase.group))
        self._round = _Round(number, phase, receiver)

    def _start(self, number: int, start_ns: int, give_up_ns: int) -> None:
        armed = self._round
        if armed is None or armed.number != number or armed.started:
            raise ValueError(f"round {number} was started without being armed")
        armed.started = True
        armed.start_ns = start_ns
        armed.give_up_ns = give_up_ns
        if armed.phase.group is not None:
            times = send_times_ns(self._packets.wire_bytes, start_ns + armed.phase.offset_ns, armed.phase.duration_ns)
            self._pacer.start(self._packets.buffer, self._packets.slot_bytes, self._packets.lengths.data, times.data)
            armed.sending = True

    def _take_in(self) -> None:
        """Take in what waits at the socket, at most a burst of it."""
        for _ in range(_BURST):
            try:
                size = self._receiver.recv_into(self._buffer)
            except BlockingIOError:
                return
            datagram = self._buffer[:size]
            try:
                header = parse_packet(datagram, self._key)
            except PacketError:
                self._refused += 1
                continue
            if self._round is None:
                # After a report the row is the trainer's: what comes now must not change it.
                self._late += 1
            elif self._round.receiver.take(header, datagram[HEADER_BYTES:]):
                self._round.last_taken_ns = time.monotonic_ns()

    def _finish_sending(self) -> None:
        os.eventfd_read(self._pacer.done_fd)
        if self._pacer.error:
            raise OSError(self._pacer.error, f"sending failed: {os.strerror(self._pacer.error)}")
        if self._round is not None:
            self._round.sending = False

    def _report_if_done(self) -> None:
        """Report the round once its last result is in and its last datagram out, or when it is given up."""
        current = self._round
        if current is None or not current.started:
            return
        if not current.receiver.complete or current.sending:
            if time.monotonic_ns() < current.give_up_ns:
                return
            self._pacer.cancel()
        self._channel.send("done", round=current.number, **self._report(current))
        self._round = None

    def _report(self, current: _Round) -> dict[str, Any]:
        receiver = current.receiver
        counts = asdict(receiver.counts)
        counts["late"] += self._late
        counts["refused"] += self._refused
        dropped = overflows(self._receiver)
        counts["socket_overflows"] = dropped - self._overflows
        self._late, self._refused, self._overflows = 0, 0, dropped
        sends = current.phase.group is not None
        lateness_ns = np.asarray(self._pacer.lateness_ns() if sends else [], np.int64)
        return {
            "completed_ns": current.last_taken_ns or current.when_nothing_came_ns,
            "chunks": receiver.chunks,
            "expected": receiver.expected.bit_count() * receiver.chunks,
            "delivered": receiver.delivered,
            **counts,
            "sent": self._pacer.sent if sends else 0,
            "send_retries": self._pacer.retries if sends else 0,
            "send_lateness_us": _lateness_us(lateness_ns),
            "send_lateness_histogram": _histogram(lateness_ns),
        }


def _histogram(lateness_ns: NDArray[np.int64]) -> list[list[int]]:
    """[upper bound in µs, frames] for powers of two; empty ones are left out."""
    exponents = np.ceil(np.log2(np.maximum(lateness_ns / 1000, 1))).astype(int)
    return [[1 << exponent, count] for exponent, count in enumerate(np.bincount(exponents).tolist()) if count]


def _lateness_us(lateness_ns: NDArray[np.int64]) -> dict[str, float]:
    """Median, 99th percentile (nearest rank) and maximum, in µs; zeros if nothing was sent."""
    ordered = np.sort(lateness_ns) / 1000
    if not len(ordered):
        return {"median": 0.0, "p99": 0.0, "max": 0.0}
    ranks = {"median": 0.5, "p99": 0.99, "max": 1.0}
    return {name: float(ordered[max(0, int(np.ceil(rank * len(ordered))) - 1)]) for name, rank in ranks.items()}


def _become_realtime() -> bool:
    """Take a low real-time priority and end garbage collection; False if the priority is not allowed."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except PermissionError:
        return False
    return True


def _set_up(channel: Channel, message: Message) -> DataPlane:
    """Raises ValueError for anything but a `setup`, or one that does not fit together; OSError."""
    if message["type"] != "setup":
        raise ValueError(f"a data plane was sent {message['type']!r} before its setup")
    shard_values: list[int] = message["shard_values"]
    values_per_chunk: int = message["values_per_chunk"]
    shard = make_shard(message["job"], message["island_id"], message["shard"], shard_values, values_per_chunk)
    area = map_exchange_area(Path(message["exchange_area"]), message["depth"], sum(shard_values), values_per_chunk)
    key = parse_key(message["tag_key"])
    return DataPlane(channel, shard, message["address"], area, message["number_format"], key)


def main() -> int:
    channel = inherited("The data-plane process of a host, started by a run.")
    try:
        setup = channel.receive()
        if setup is None or setup["type"] == "stop":
            return 0
        data_plane = _set_up(channel, setup)
        try:
            data_plane.serve()
        finally:
            data_plane.close()
    except (ValueError, LookupError, OSError) as error:
        with suppress(OSError):
            channel.send("error", message=f"data plane: {error}")
        return 1
    finally:
        channel.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
