"""The edge process: `python -m aggregator.edge --control-fd N`. Sums the contributions that reach one island.

It belongs in the network namespace of the island's edge node. Run control: docs/run-control.md; packets:
docs/wire-format.md; what happens to them: docs/aggregator.md.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterable
from ipaddress import IPv4Address
from typing import Any

from aggregator import sockets
from aggregator.admission import Admission
from aggregator.engine import BYPASSED, INDEX_WAYS, EngineConfig, EngineError, empty_headers
from aggregator.engines import make_engine
from aggregator.realtime import become_realtime
from aggregator.results import ResultStreams
from aggregator.wire import control
from aggregator.wire.batch import Batch, PacketRecord
from aggregator.wire.packet import Kind, PacketError, probe_sent_ns

BATCH = 64
_ROUNDS_REMEMBERED = 4
_IDLE_MS = 1000.0
_REST_MS = 2.0
_BYPASSED = frozenset(int(verdict) for verdict in BYPASSED)


def index_entries(slots: int, keys_per_round: int) -> int:
    """Index size for a budget of `slots`: room for all slots, and for the tombstones of a few rounds, at ¼ load."""
    wanted = max(INDEX_WAYS, 4 * slots, 4 * _ROUNDS_REMEMBERED * keys_per_round)
    return 1 << (wanted - 1).bit_length()


class Edge:
    """One edge from `setup` on. Raises OSError or EngineError if it cannot be set up."""

    def __init__(self, setup: control.Message):
        self.job: int = setup["job"]
        self.address: str = setup["address"]
        values_per_chunk: int = setup["values_per_chunk"]
        shard_values: list[int] = setup["shard_values"]
        chunks = sum(-(-values // values_per_chunk) for values in shard_values)
        self.engine = make_engine(setup["engine"])
        self.engine.open(
            EngineConfig(
                slots=setup["slots"],
                values_per_chunk=values_per_chunk,
                index_entries=index_entries(setup["slots"], chunks),
                hash_key=self.job,
                max_batch=BATCH,
            )
        )
        self.admission = Admission(self.job, setup["contributors"], shard_values, values_per_chunk)
        self.receiver = sockets.open_receiver()
        self.results = ResultStreams(
            sockets.open_sender(self.address),
            setup["host_addresses"],
            setup["island_id"],
            values_per_chunk,
            setup["line_rate_bps"],
        )
        self.probes: dict[int, list[tuple[str, int, int]]] = {}
        self.phases: dict[int, list[dict[str, int]]] = {}
        self.flows: dict[int, set[tuple[str, str]]] = {}
        self.armed: dict[int, int] = {}
        self._arrived = Batch(BATCH, values_per_chunk)
        self._in = empty_headers(BATCH)
        self._out = empty_headers(BATCH)
        self._counted_refusals: dict[str, int] = {}
        self._counted_overflows = 0

    # --- packets ---

    def receive(self) -> bool:
        """Take up to BATCH datagrams from the socket and submit the contributions; whether the socket is empty then."""
        received = self._arrived.receive(self.receiver)
        rows, records = self._arrived.rows, self._arrived.records
        count = 0
        for i, record in enumerate(self._arrived.take(received)):
            if not self.admission.admit(record):
                continue
            if record.kind == Kind.PROBE:
                self._note_probe(record, rows[i, : record.size].data)
                continue
            if count < i:  # contributions stay together in the first rows
                rows[count], records[count] = rows[i], records[i]
            count += 1
        if count:
            for name in ("job", "epoch", "round", "shard", "chunk", "value_count", "source"):
                getattr(self._in, name)[:count] = records[name][:count]
            self._submit(count, time.monotonic_ns())
        return received < BATCH

    def _submit(self, count: int, now_ns: int) -> None:
        """Give the first `count` rows to the engine. Its staging is empty, so it takes the whole batch."""
        accepted = self.engine.submit(self._in, self._arrived.payloads, count, now_ns)
        if accepted != count:
            raise EngineError(f"engine took {accepted} of {count} contributions although no results were waiting")
        verdicts = self._in.verdict[:count].tolist()
        for i, verdict in enumerate(verdicts):
            if verdict in _BYPASSED:
                size = self._arrived.records[i]["size"]
                self.results.add_bypassed(self._arrived.rows[i, :size], int(self._in.shard[i]))

    def _note_probe(self, record: PacketRecord, datagram: memoryview) -> None:
        try:
            sent_ns = probe_sent_ns(datagram)
        except PacketError:
            self.admission.refused["length"] += 1
            return
        group = str(IPv4Address(record.number))
        self.probes.setdefault(record.chunk, []).append((group, sent_ns, time.monotonic_ns()))

    def serve(self, now_ns: int) -> None:
        """Send what is due. On return the engine has no result that is due, or the ring is full."""
        self.results.send(now_ns)
        while self.results.room():
            payloads = self.results.free_payloads(BATCH)
            count = self.engine.poll(self._out, payloads, now_ns)
            self.results.add_results(self._out, count)
            self.results.send(now_ns)
            if count < len(payloads):
                return

    def can_receive(self) -> bool:
        """Whether a whole batch could be bypassed, and its results be queued as well."""
        return self.results.room() >= 2 * BATCH

    def wait_ms(self, now_ns: int) -> float:
        """How long nothing is due unless something arrives."""
        due_ns = self.results.next_send_ns()
        deadline_ns = self.engine.next_deadline_ns()
        if deadline_ns is not None and self.results.room():
            due_ns = min(due_ns, deadline_ns)
        return min(_IDLE_MS, max(0.0, (due_ns - now_ns) / 1e6))

    # --- run control ---

    def handle(self, message: control.Message) -> dict[str, Any]:
        """Do what a message asks and return the answer, `type` included. Raises OSError, EngineError, KeyError."""
        match message["type"]:
            case "epoch":
                self._begin_epoch(message["epoch"], message["phases"], message["groups"])
                return {"type": "epoch_ready", "epoch": message["epoch"]}
            case "probe_report":
                probe = message["probe"]
                return {"type": "probe_report", "probe": probe, "arrivals": self.probes.get(probe, [])}
            case "arm":
                self._arm(message["round"], message["epoch"], message["phase"])
                return {"type": "armed", "round": message["round"]}
            case "retire":
                return {"type": "retired", "round": message["round"], **self._retire(message["round"])}
            case kind:
                raise EngineError(f"message {kind!r} is not one for an edge")

    def _begin_epoch(self, epoch: int, phases: list[dict[str, int]], groups: Iterable[dict[str, str]]) -> None:
        """Join the epoch's groups; those of the epoch before stay joined, since its rounds may be under way."""
        joined = self._all_flows()
        self.phases[epoch] = phases
        self.flows[epoch] = {(group["group"], group["source"]) for group in groups}
        for old in [old for old in self.flows if old < epoch - 1]:
            del self.flows[old], self.phases[old]
        wanted = self._all_flows()
        for group, source in sorted(wanted - joined):
            sockets.join(self.receiver, group, source, self.address)
        for group, source in sorted(joined - wanted):
            sockets.leave(self.receiver, group, source, self.address)
        self.admission.allow(wanted)

    def _all_flows(self) -> set[tuple[str, str]]:
        return set().union(*self.flows.values())

    def _arm(self, round_number: int, epoch: int, phase: int) -> None:
        """Admit the round's keys; a phase in which nothing arrives has none."""
        plan = self.phases[epoch][phase]
        if plan["expected"]:
            self.engine.set_clique(self.job, epoch, round_number, plan["expected"], plan["deadline_ns"])
            self.armed[round_number] = epoch

    def _retire(self, round_number: int) -> dict[str, Any]:
        """Forget the round; counts that belong to no round are those since the last one was retired."""
        high_water = self.engine.stats().high_water_slots
        self.engine.reset_high_water()
        report: dict[str, Any] = dict.fromkeys(("complete", "timeout", "collision", "late", "duplicate"), 0)
        if round_number in self.armed:
            counts = self.engine.drop_clique(self.job, self.armed.pop(round_number), round_number)
            report = {
                "complete": counts.complete,
                "timeout": counts.timeout,
                "collision": counts.collision + counts.bypassed_pool + counts.bypassed_index,
                "late": counts.late,
                "duplicate": counts.duplicate,
            }
        overflows = sockets.overflows(self.receiver)
        report["high_water_slots"] = high_water
        report["refused"] = self._new_refusals()
        report["socket_overflows"] = overflows - self._counted_overflows
        self._counted_overflows = overflows
        return report

    def _new_refusals(self) -> dict[str, int]:
        """Refusals since the last call, by the edge's checks and by the engine's."""
        counters = self.engine.stats().counters
        totals = self.admission.refused.copy()
        totals["epoch"] += counters.refused_epoch
        totals["source"] += counters.refused_source
        totals["length"] += counters.refused_length
        new = {reason: total - self._counted_refusals.get(reason, 0) for reason, total in totals.items()}
        self._counted_refusals = dict(totals)
        return {reason: count for reason, count in sorted(new.items()) if count}


def run(edge: Edge, channel: control.Channel) -> None:
    """Serve until `stop` or until the run is gone."""
    # Waking up costs as much as a packet does. So after each batch the socket is left alone for a while, as network
    # cards do it: what arrives meanwhile is taken in one go, and only run control and deadlines end the rest.
    resting, watching = select.poll(), select.poll()
    for poller in (resting, watching):
        poller.register(channel.fileno(), select.POLLIN)
    watching.register(edge.receiver.fileno(), select.POLLIN)
    receiver, rest_ms = edge.receiver.fileno(), 0.0
    while True:
        wait_ms = edge.wait_ms(time.monotonic_ns())
        if rest_ms or not edge.can_receive():
            ready = resting.poll(min(wait_ms, rest_ms or _IDLE_MS))
        else:
            ready = watching.poll(wait_ms)
        rest_ms = 0.0
        if any(fd == receiver for fd, _ in ready) and edge.receive():
            rest_ms = _REST_MS
        edge.serve(time.monotonic_ns())
        if any(fd != receiver for fd, _ in ready):
            message = channel.receive()
            if message is None or message["type"] == "stop":
                return
            answer = edge.handle(message)
            channel.send(answer.pop("type"), **answer)


def main() -> int:
    # An interrupt from the keyboard reaches the whole process group; it is the run that ends its processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = control.inherited("The aggregator of one island's edge; started by the run.")
    try:
        setup = channel.receive()
        if setup is None:
            return 0
        edge = Edge(setup)
        channel.send("hello", pid=os.getpid(), realtime=become_realtime())
        run(edge, channel)
    except (OSError, EngineError, KeyError) as error:
        message = f"a control message lacks {error}" if isinstance(error, KeyError) else str(error)
        print(f"edge: {message}", file=sys.stderr)
        with contextlib.suppress(OSError):
            channel.send("error", message=f"edge: {message}")
        return 1
    finally:
        channel.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
