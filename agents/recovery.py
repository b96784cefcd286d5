"""Repair as a host does it: asks its edge for what it has missed, fetches from other islands, and answers their hosts.

The rules are in agents/stream_watch.py, fetching.py and answering.py; here are the sockets. docs/recovery.md explains.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

from agents.answering import Answering
from agents.exchange_area import ExchangeArea
from agents.fetching import Fetching, RoundTrips
from agents.receiving import Receiver, Tell, Why
from agents.sending import open_sender
from agents.shard import Shard
from agents.stream_watch import StreamWatch
from aggregator.wire.packet import (
    HEADER_BYTES,
    REPAIR_PORT,
    RESULT_PORT,
    Header,
    Kind,
    PacketError,
    Reason,
    parse_packet,
    write_header,
)

_BURST = 64
_LONGEST_REQUEST = 128


@dataclass(frozen=True)
class RepairSettings:
    """How a host repairs.

    `peers`: island ids by address, of the other islands' hosts that have the same shard. `fetch`: whether to fetch
    from them what the WAN has lost. `hold_off_ns`: how long to wait at least for what is missing. `uplink_bps`: the
    host's share of the island's; answers take a quarter of it.
    """

    edge_address: str
    peers: Mapping[str, int]
    fetch: bool
    hold_off_ns: int
    uplink_bps: float


class Recovery:
    """One host's repairs, through all rounds."""

    def __init__(
        self,
        address: str,
        shard: Shard,
        area: ExchangeArea,
        settings: RepairSettings,
        number_format: int,
        key: bytes | None,
    ) -> None:
        """Raises OSError."""
        self._settings = settings
        self._shard = shard
        self._key = key
        self._socket = open_sender(address, REPAIR_PORT)
        self._socket.setblocking(False)
        self._buffer = memoryview(bytearray(_LONGEST_REQUEST))
        self._watch = StreamWatch(settings.hold_off_ns)
        self._round_trips = RoundTrips(settings.hold_off_ns)
        self._addresses = {island: peer for peer, island in settings.peers.items()}
        interval_ns = settings.hold_off_ns // 2
        self._answering = Answering(shard, area, settings.peers, settings.uplink_bps, interval_ns, number_format, key)
        self._round: tuple[int, int] | None = None
        self._fetching: Fetching | None = None
        self._fetches_sent = 0
        self._out = memoryview(bytearray(HEADER_BYTES))
        self._counted: Counter[str] = Counter()
        self.refused = 0

    def fileno(self) -> int:
        """Where requests of other islands' hosts come in."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def begin(self, epoch: int, round_number: int, sends: bool, receiver: Receiver) -> None:
        """A round is armed; `sends`: this host has a contribution in it."""
        self._round = epoch, round_number
        if sends:
            self._answering.keep(round_number, epoch)
        if self._settings.fetch:
            self._fetching = Fetching(receiver.expected, receiver.have, self._settings.hold_off_ns, self._round_trips)

    def start(self, fetch_ns: int) -> None:
        """The round is announced; from `fetch_ns` on what has not come is fetched."""
        if self._fetching is not None:
            self._fetching.all_due_ns = fetch_ns

    def end(self) -> dict[str, int]:
        """The round is over, and nothing more is wanted of it; returns what has happened since the last one ended."""
        if self._fetching is not None:
            self._fetches_sent += self._fetching.requests_sent
        self._round = self._fetching = None
        self._watch.forget()
        totals = Counter(asdict(self._watch.counts)) + self._answering.counts + Counter(fetches_sent=self._fetches_sent)
        new, self._counted = totals - self._counted, totals
        return dict(sorted(new.items()))

    @property
    def tell(self) -> Tell:
        """What the receiver shall tell of what it merges."""
        if self._fetching is None:
            return Tell.NONE
        return Tell.GIVEN_UP if self._fetching.idle else Tell.ALL

    def catch_up(self, receiver: Receiver) -> None:
        """Take note of what the receiver has taken in, and tell it whose turn it is."""
        turns = receiver.take_turns()
        if turns is not None:
            self._watch.in_turn(*turns)
        for header, why in receiver.told():
            if Why.PLACE in why:
                self._note(header, receiver.batch_ns)
            if Why.MERGED in why:
                self._merged(header, receiver.batch_ns)
        receiver.follow(self._watch.stream, self._watch.next)

    def _note(self, header: Header, now_ns: int) -> None:
        """Note the place of a packet in the edge's stream."""
        match header.kind:
            case Kind.HEARTBEAT:
                self._watch.heartbeat(header, now_ns)
            case Kind.GONE:
                self._watch.gone(header)
            case _:
                self._watch.arrived(header, now_ns)

    def _merged(self, header: Header, now_ns: int) -> None:
        """A packet has been added to the round's sums."""
        if self._fetching is not None:
            self._fetching.arrived(header.chunk, header.bitmap, now_ns, fetched=not header.stream)
            if header.reason is Reason.TIMEOUT:
                self._fetching.given_up(header.chunk, now_ns)

    def take_requests(self, now_ns: int) -> None:
        """Take in what waits at `fileno`, at most a burst of it."""
        for _ in range(_BURST):
            try:
                size, (sender, _) = self._socket.recvfrom_into(self._buffer)
            except BlockingIOError:
                return
            try:
                header = parse_packet(self._buffer[:size], self._key)
            except PacketError:
                self.refused += 1
                continue
            self.refused += not self._answering.request(header, sender, now_ns)

    def next_ns(self) -> float:
        """When `serve` has something to do, or earlier; infinite: not before something arrives."""
        due_ns = self._answering.next_ns()
        if self._round is not None:
            due_ns = min(due_ns, self._watch.next_ns() or float("inf"))
        if self._fetching is not None:
            due_ns = min(due_ns, self._fetching.next_ns())
        return due_ns

    def serve(self, now_ns: int) -> None:
        """Send the requests and the answers that are due."""
        while (answer := self._answering.answer(now_ns)) is not None:
            self._send(answer.datagram, (answer.address, RESULT_PORT))
        if self._round is None:
            # What is missing now was of a round that is over.
            self._watch.forget()
            return
        for first, bitmap in self._watch.requests(now_ns):
            nack = self._request(Kind.NACK, bitmap)
            nack.number, nack.stream = first, self._watch.stream
            self._send_request(nack, self._settings.edge_address)
        if self._fetching is not None:
            for island, first, bitmap in self._fetching.requests(now_ns):
                fetch = self._request(Kind.FETCH, bitmap)
                fetch.chunk = first
                self._send_request(fetch, self._addresses[island])

    def _request(self, kind: Kind, bitmap: int) -> Header:
        assert self._round is not None
        epoch, round_number = self._round
        return Header(
            kind=kind,
            source=self._shard.island_id,
            job=self._shard.job,
            epoch=epoch,
            round=round_number,
            shard=self._shard.number,
            chunk=0,
            value_count=0,
            contributors=bitmap.bit_count(),
            bitmap=bitmap,
        )

    def _send_request(self, header: Header, address: str) -> None:
        size = write_header(self._out, header, self._key)
        self._send(self._out[:size], (address, REPAIR_PORT))

    def _send(self, datagram: memoryview, destination: tuple[str, int]) -> None:
        # One that does not fit the socket's buffer, or meets no route, is as good as lost: it is asked for again.
        with suppress(OSError):
            self._socket.sendto(datagram, destination)
