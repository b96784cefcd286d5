"""The data-plane process of a host: sends the round's contribution on time, takes in what the edge sends.

Where an island has several hosts, each then gives the others what it has received.

    python -m agents.dataplane --control-fd N

Run control is docs/run-control.md. Nothing else happens here: no training, no garbage collection, and the sending
itself is in a native thread, so that a datagram leaves when it is due.
"""

import os
import select
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agents._pacer import Pacer
from agents.exchange_area import ExchangeArea, map_exchange_area
from agents.island_memory import IslandMemory
from agents.lan import Lan
from agents.lateness import figures_us, histogram
from agents.phase import Phase
from agents.receiving import Receiver, open_receiver
from agents.recovery import Recovery, RepairSettings
from agents.sending import RoundPackets, destination, frame_sizes, open_sender, probe_packet, turns_ns
from agents.shard import Shard, make_shard
from aggregator.wire.buffers import overflows, receive_buffer_bytes
from aggregator.wire.control import Channel, Message, process_main
from aggregator.wire.realtime import become_realtime
from aggregator.wire.tag import parse_key

PACER_PRIORITY = 40


class _Line:
    """A way out of the host: a socket bound to one source address, and the thread that sends on it."""

    def __init__(self, address: str, most_catch_up_ns: int) -> None:
        """Raises OSError."""
        self.socket = open_sender(address)
        self.pacer = Pacer(self.socket.fileno(), PACER_PRIORITY, most_catch_up_ns)

    def close(self) -> None:
        self.pacer.close()
        self.socket.close()


@dataclass
class _Round:
    """The round at hand, from `arm` until it is reported."""

    number: int
    phase: Phase
    line: _Line
    started: bool = False
    sending: bool = False
    start_ns: int = 0
    give_up_ns: int = 0

    @property
    def when_nothing_came_ns(self) -> int:
        """The end of a round in which nothing was taken in: its start on an idle island, else when it was given up."""
        return self.give_up_ns if self.phase.expected else self.start_ns


class DataPlane:
    """One host: its sockets, its packets and the round at hand."""

    def __init__(
        self,
        channel: Channel,
        shards: list[Shard],
        own: int,
        address: str,
        area: ExchangeArea,
        lan: Lan,
        number_format: int,
        key: bytes | None,
        most_catch_up_ns: int,
        repair: RepairSettings,
    ) -> None:
        """`shards` are all of the island's, `own` is this host's number among them. Raises OSError without sockets.

        `most_catch_up_ns`: how much of the schedule may be sent at once after a stall.
        """
        self._channel = channel
        self._shard = shard = shards[own]
        self._frames = [frame_sizes(each) for each in shards]
        self._memory = IslandMemory(shards, own, area)
        self._lan = lan
        self._area = area
        self._key = key
        self._most_catch_up_ns = most_catch_up_ns
        self._packets = RoundPackets(shard, number_format, key)
        self._socket = open_receiver(address)
        self._receiver = Receiver(self._socket, shard, repair.edge_address, repair.peers, number_format, key)
        self._recovery = Recovery(address, shard, area, repair, number_format, key)
        self._others = select.epoll()  # all that may be readable but the receiver's socket
        self._lan_interests: dict[int, int] = {}
        self._address = address
        self._lines: dict[str, _Line] = {}
        self._add_line(address)
        self._epochs: dict[int, list[Phase]] = {}
        self._round: _Round | None = None
        self._gather_began_ns = 0
        self._overflows = 0
        self.realtime = become_realtime() and self._lines[address].pacer.realtime

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._socket.close()
        self._recovery.close()
        self._lan.close()
        self._others.close()

    def _add_line(self, address: str) -> None:
        line = self._lines[address] = _Line(address, self._most_catch_up_ns)
        self._others.register(line.pacer.done_fd, select.EPOLLIN)

    def serve(self) -> None:
        """Until `stop`, or until the run is gone. Raises ValueError, LookupError or OSError when it cannot go on."""
        for fd in (self._channel.fileno(), self._recovery.fileno()):
            self._others.register(fd, select.EPOLLIN)
        self._channel.send(
            "hello",
            pid=os.getpid(),
            realtime=self.realtime,
            receive_buffer_bytes=receive_buffer_bytes(self._socket),
        )
        while True:
            self._watch_lan()
            others = self._receiver.wait(self._others.fileno(), self._due_ns(), self._recovery.tell)
            self._recovery.catch_up(self._receiver)
            ready = {fd for fd, _ in self._others.poll(0)} if others else set()
            if ready & self._lan_interests.keys():
                for part in self._lan.serve():
                    self._memory.take(part)
            if self._recovery.fileno() in ready:
                self._recovery.take_requests(time.monotonic_ns())
            for line in self._lines.values():
                if line.pacer.done_fd in ready:
                    self._finish_sending(line)
            if self._channel.fileno() in ready:
                message = self._channel.receive()
                if message is None or message["type"] == "stop":
                    return
                self._answer(message)
            self._recovery.serve(time.monotonic_ns())
            self._report_if_done()
            self._report_if_gathered()

    def _watch_lan(self) -> None:
        for fd, events in self._lan.interests().items():
            if fd not in self._lan_interests:
                self._others.register(fd, events)
            elif events != self._lan_interests[fd]:
                self._others.modify(fd, events)
            self._lan_interests[fd] = events

    def _due_ns(self) -> float:
        """When there is something to do even if nothing arrives; infinite: never."""
        due_ns = self._recovery.next_ns()
        if self._round is not None and self._round.started:
            due_ns = min(due_ns, self._round.give_up_ns)
        return due_ns

    def _answer(self, message: Message) -> None:
        match message["type"]:
            case "epoch":
                self._begin_epoch(message["epoch"], message["phases"])
                self._channel.send("epoch_ready", epoch=message["epoch"])
            case "probe":
                sent = self._probe(message["epoch"], message["probe"])
                self._channel.send("probed", probe=message["probe"], sent=sent)
            case "arm":
                self._arm(message["round"], message["epoch"], message["phase"])
                self._channel.send("armed", round=message["round"])
            case "gather":
                self._gather_began_ns = time.monotonic_ns()
                self._lan.offer(message["round"], self._memory.own_part())
            case "start":
                self._start(message["round"], message["start_ns"], message["fetch_ns"], message["give_up_ns"])
            case "account":
                self._channel.send("accounted", late=self._receiver.end().late, repair=self._recovery.end())
            case kind:
                raise ValueError(f"a data plane does not know the message {kind!r}")

    def _begin_epoch(self, epoch: int, phases: Sequence[dict[str, Any]]) -> None:
        """Hold an epoch ready, beside the one before it, whose rounds may be under way."""
        self._epochs[epoch] = [Phase.from_message(phase) for phase in phases]
        for old in [old for old in self._epochs if old < epoch - 1]:
            del self._epochs[old]
        for phase in self._epochs[epoch]:
            if phase.source is not None and phase.source not in self._lines:
                self._add_line(phase.source)

    def _probe(self, epoch: int, probe: int) -> int:
        """Send a probe on each tree of the epoch; returns how many."""
        sent = 0
        trees = {(phase.group, phase.source): phase.destinations for phase in self._epochs[epoch]}
        for (group, source), destinations in trees.items():
            if group is None or source is None:
                continue
            for address in destinations:
                packet = probe_packet(self._shard, epoch, probe, group, time.monotonic_ns(), self._key)
                self._lines[source].socket.sendto(packet, destination(address))
                sent += 1
        return sent

    def _arm(self, number: int, epoch: int, phase_number: int) -> None:
        if self._round is not None:
            raise ValueError(f"round {number} was armed while round {self._round.number} is not done")
        phase = self._epochs[epoch][phase_number]
        row = self._area.row(number)
        self._memory.begin(number)
        self._receiver.begin(
            epoch,
            number,
            phase.expected,
            self._memory.summed[self._shard.value_slice],
            self._memory.bitmaps[self._shard.chunk_slice],
        )
        self._recovery.begin(epoch, number, phase.group is not None, self._receiver)
        line = self._lines[phase.source or self._address]
        if phase.group is not None:
            self._packets.build(self._area.sent[row, self._shard.value_slice], epoch, number)
            if len(phase.destinations) == 1:
                # The kernel then finds the way once, and not for every datagram.
                line.socket.connect(destination(phase.destinations[0]))
        self._round = _Round(number, phase, line)

    def _start(self, number: int, start_ns: int, fetch_ns: int, give_up_ns: int) -> None:
        armed = self._round
        if armed is None or armed.number != number or armed.started:
            raise ValueError(f"round {number} was started without being armed")
        armed.started = True
        armed.start_ns = start_ns
        armed.give_up_ns = give_up_ns
        self._recovery.start(fetch_ns)
        phase, packets = armed.phase, self._packets
        if phase.group is not None:
            copies = len(phase.destinations)
            begin_ns = start_ns + phase.offset_ns
            times = turns_ns(self._frames, self._shard.number, copies, begin_ns, phase.duration_ns)
            to = [destination(address) for address in phase.destinations] if copies > 1 else []
            armed.line.pacer.start(packets.buffer, packets.slot_bytes, packets.lengths.data, times.data, to)
            armed.sending = True

    def _finish_sending(self, line: _Line) -> None:
        os.eventfd_read(line.pacer.done_fd)
        if line.pacer.error:
            raise OSError(line.pacer.error, f"sending failed: {os.strerror(line.pacer.error)}")
        if self._round is not None:
            self._round.sending = False

    def _report_if_done(self) -> None:
        """Report the round once its last result is in and its last datagram out, or when it is given up."""
        current = self._round
        if current is None or not current.started:
            return
        if not self._receiver.complete or current.sending:
            if time.monotonic_ns() < current.give_up_ns:
                return
            current.line.pacer.cancel()
        self._channel.send("done", round=current.number, **self._report(current))
        self._round = None

    def _report_if_gathered(self) -> None:
        """Report when the shards of the island's other hosts are here as well, as asked by `gather`."""
        if self._gather_began_ns and self._memory.complete:
            took_ns, self._gather_began_ns = time.monotonic_ns() - self._gather_began_ns, 0
            digest = self._memory.digest()
            self._channel.send("gathered", round=self._memory.round, took_ns=took_ns, digest=digest)

    def _report(self, current: _Round) -> dict[str, Any]:
        receiver = self._receiver
        counts = receiver.end()
        counts.refused += self._recovery.refused
        self._recovery.refused = 0
        dropped, before = overflows(self._socket), self._overflows
        self._overflows = dropped
        pacer = current.line.pacer if current.phase.group is not None else None
        lateness_ns = np.asarray(pacer.lateness_ns() if pacer else [], np.int64)
        return {
            "completed_ns": receiver.last_arrival_ns or current.when_nothing_came_ns,
            "chunks": receiver.chunks,
            "expected": receiver.expected.bit_count() * receiver.chunks,
            "delivered": receiver.delivered,
            **asdict(counts),
            "repair": self._recovery.end(),
            "socket_overflows": dropped - before,
            "receive_wait_us": figures_us(receiver.waits_ns),
            "sent": pacer.sent if pacer else 0,
            "send_retries": pacer.retries if pacer else 0,
            "send_lateness_us": figures_us(lateness_ns),
            "send_lateness_histogram": histogram(lateness_ns),
        }


def _set_up(channel: Channel, message: Message) -> DataPlane:
    """Raises ValueError for anything but a `setup`, or one that does not fit together; OSError."""
    if message["type"] != "setup":
        raise ValueError(f"a data plane was sent {message['type']!r} before its setup")
    shard_values: list[int] = message["shard_values"]
    values_per_chunk: int = message["values_per_chunk"]
    shards = [
        make_shard(message["job"], message["island_id"], number, shard_values, values_per_chunk)
        for number in range(len(shard_values))
    ]
    area = map_exchange_area(Path(message["exchange_area"]), message["depth"], sum(shard_values), values_per_chunk)
    own: int = message["shard"]
    lan = Lan(message["job"], own, message["host_addresses"])
    key = parse_key(message["tag_key"])
    repair = RepairSettings(**message["repair"])
    number_format: int = message["number_format"]
    most_catch_up_ns: int = message["most_catch_up_ns"]
    return DataPlane(channel, shards, own, message["address"], area, lan, number_format, key, most_catch_up_ns, repair)


def _serve(channel: Channel) -> None:
    setup = channel.receive()
    if setup is None or setup["type"] == "stop":
        return
    data_plane = _set_up(channel, setup)
    try:
        data_plane.serve()
    finally:
        data_plane.close()


def main() -> int:
    return process_main("data plane", "The data-plane process of a host, started by a run.", _serve)


if __name__ == "__main__":
    raise SystemExit(main())
