"""One edge: sums the contributions that reach one island. `python -m aggregator.edge --control-fd N` is its process.

It belongs in the network namespace of the island's edge node. Run control: docs/run-control.md; packets:
docs/wire-format.md; what happens to them: docs/aggregator.md.
"""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aggregator import sockets
from aggregator.admission import Shape
from aggregator.deadlines import make_deadline_policy
from aggregator.edge_loop import serve_until_readable
from aggregator.engine import BYPASSED, INDEX_WAYS, Counters, EngineConfig, EngineError, empty_headers
from aggregator.occupancy import Occupancy
from aggregator.receiver import BATCH, make_receiver
from aggregator.repair import Repairs
from aggregator.results import ResendSettings, ResultStreams
from aggregator.service import EngineService
from aggregator.wire import control
from aggregator.wire.buffers import overflows, receive_buffer_bytes
from aggregator.wire.realtime import become_realtime
from aggregator.wire.tag import parse_key

_ROUNDS_REMEMBERED = 4
_IDLE_MS = 1000.0
_BYPASSED = frozenset(int(verdict) for verdict in BYPASSED)


@dataclass(frozen=True)
class EdgeSetup:
    """What an edge is set up with; docs/run-control.md says what each field is (message `setup`)."""

    island_id: int
    job: int
    values_per_chunk: int
    shard_values: list[int]
    host_addresses: list[str]
    address: str
    contributors: dict[str, int]
    slots: int
    engine: str
    line_rate_bps: float
    number_format: int = 0
    collision_policy: str = "bypass-new"
    late_policy: str = "bypass"
    deadline_policy: str = "fixed"
    slots_per_source: int | None = None
    engine_load_s: float = 0.0
    resend_window_ns: int = ResendSettings.window_ns
    resend_bytes: int = ResendSettings.buffer_bytes
    heartbeat_ns: int = ResendSettings.heartbeat_ns
    repair_interval_ns: int = ResendSettings.repair_interval_ns
    first_number: int = ResendSettings.first_number
    tag_key: str = ""
    island: str = ""
    interface: str = ""


@dataclass(frozen=True)
class ArmedRound:
    """A round whose keys are admitted."""

    epoch: int
    phase: int


def index_entries(slots: int, keys_per_round: int) -> int:
    """Index size for a budget of `slots`: room for all slots, and for the tombstones of a few rounds, at ¼ load."""
    wanted = max(INDEX_WAYS, 4 * slots, 4 * _ROUNDS_REMEMBERED * keys_per_round)
    return 1 << (wanted - 1).bit_length()


class Edge:
    """One edge from `setup` on. Raises OSError or EngineError if it cannot be set up."""

    def __init__(self, setup: EdgeSetup):
        self.job = setup.job
        self.address = setup.address
        values_per_chunk, shard_values = setup.values_per_chunk, setup.shard_values
        chunks = sum(-(-values // values_per_chunk) for values in shard_values)
        config = EngineConfig(
            slots=setup.slots,
            values_per_chunk=values_per_chunk,
            index_entries=index_entries(setup.slots, chunks),
            hash_key=self.job,
            max_batch=BATCH,
            slots_per_source=setup.slots_per_source,
            late_policy=setup.late_policy,
            collision_policy=setup.collision_policy,
            number_format=setup.number_format,
        )
        self.deadlines = make_deadline_policy(setup.deadline_policy)
        self.service = EngineService(setup.engine, config, round(setup.engine_load_s * 1e9))
        self.socket = sockets.open_receiver()
        key = parse_key(setup.tag_key)
        shape = Shape(self.job, setup.contributors, shard_values, values_per_chunk, setup.number_format, key)
        self.receiver = make_receiver(self.socket, shape)
        self.results = ResultStreams(
            sockets.open_sender(self.address),
            setup.host_addresses,
            setup.island_id,
            values_per_chunk,
            setup.line_rate_bps,
            setup.number_format,
            key,
            ResendSettings(
                window_ns=setup.resend_window_ns,
                buffer_bytes=setup.resend_bytes,
                heartbeat_ns=setup.heartbeat_ns,
                repair_interval_ns=setup.repair_interval_ns,
                first_number=setup.first_number,
            ),
        )
        requests = sockets.open_requests(self.address)
        self.repairs = Repairs(requests, self.results, self.job, setup.repair_interval_ns, key)
        self.occupancy = Occupancy()
        self.probes: dict[int, list[tuple[str, int, int]]] = {}
        self.phases: dict[int, list[dict[str, int]]] = {}
        self.flows: dict[int, set[tuple[str, str]]] = {}
        self.armed: dict[int, ArmedRound] = {}
        self.out = empty_headers(BATCH)
        self._counted_refusals: Counter[str] = Counter()
        self._counted_repairs: Counter[str] = Counter()
        self._counted_overflows = 0

    def close(self) -> None:
        """Close the sockets and the engine."""
        self.socket.close()
        self.results.close()
        self.repairs.close()
        self.service.close()

    # --- packets ---

    def receive(self) -> tuple[int, bool]:
        """Take a batch from the socket and submit it: how many contributions, and whether the socket is empty now."""
        count, emptied = self.receiver.receive()
        self.note_probes()
        if count:
            self._submit(count, time.monotonic_ns())
        return count, emptied

    def note_probes(self) -> None:
        """Keep what has arrived of probes, for `probe_report`."""
        for probe in self.receiver.take_probes():
            self.probes.setdefault(probe.probe, []).append((probe.group, probe.sent_ns, probe.arrival_ns))

    def _submit(self, count: int, now_ns: int) -> None:
        """Give the first `count` rows to the engine, and send on what bypassed."""
        headers = self.receiver.headers
        if not self.service.submit(headers, self.receiver.payloads, count, now_ns):
            return
        for i, verdict in enumerate(headers.verdict[:count].tolist()):
            if verdict in _BYPASSED:
                self.results.add_bypassed(self.receiver.datagram(i), int(headers.shard[i]))
        self.occupancy.note(self.service.engine.take_high_water(), now_ns)

    def serve(self, now_ns: int) -> None:
        """Send what is due. On return the engine has no result that is due, or the ring is full."""
        self.repairs.send(now_ns)
        self.results.send(now_ns)
        while self.results.room():
            payloads = self.results.free_payloads(BATCH)
            count = self.service.poll(self.out, payloads, now_ns)
            self.results.add_results(self.out, count)
            self.results.send(now_ns)
            # The batch that is held back needs room: until there is, a failed engine stays, empty.
            if self.service.failing and count == 0 and self.results.room() >= BATCH:
                held = self.service.give_up_failed()
                if held:
                    self._submit(held, now_ns)
            if count == 0 or (count < len(payloads) and not self.service.failing):
                return

    def can_receive(self) -> bool:
        """Whether a whole batch could be bypassed, and its results be queued as well."""
        return not self.service.failing and self.results.room() >= 2 * BATCH

    def wait_ms(self, now_ns: int) -> float:
        """How long nothing is due unless something arrives."""
        due_ns = min(self.results.next_send_ns(), self.repairs.next_ns())
        if self.service.failing and self.results.room() >= BATCH:
            return 0.0
        deadline_ns = self.service.next_deadline_ns()
        if deadline_ns is not None and self.results.room():
            due_ns = min(due_ns, deadline_ns)
        return min(_IDLE_MS, max(0.0, (due_ns - now_ns) / 1e6))

    # --- rounds ---

    def begin_epoch(self, epoch: int, phases: list[dict[str, int]], groups: Iterable[tuple[str, str]]) -> None:
        """Join the epoch's (group, source) pairs; those of the epoch before stay joined for its last rounds."""
        joined = self._all_flows()
        self.phases[epoch] = phases
        self.flows[epoch] = set(groups)
        for old in [old for old in self.flows if old < epoch - 1]:
            del self.flows[old], self.phases[old]
        wanted = self._all_flows()
        self._join(wanted, joined)

    def leave_epoch(self, epoch: int) -> None:
        """Leave the groups of an epoch whose rounds are over; those that another epoch has as well stay joined."""
        joined = self._all_flows()
        self.flows.pop(epoch, None)
        self.phases.pop(epoch, None)
        self._join(self._all_flows(), joined)

    def _join(self, wanted: set[tuple[str, str]], joined: set[tuple[str, str]]) -> None:
        """Join and leave, so that exactly `wanted` is received. A flow to the edge's own address needs no joining."""
        for group, source in sorted(wanted - joined):
            if group != self.address:
                sockets.join(self.socket, group, source, self.address)
        for group, source in sorted(joined - wanted):
            if group != self.address:
                # One whose joining failed is not there to be left.
                with suppress(OSError):
                    sockets.leave(self.socket, group, source, self.address)
        self.receiver.allow(wanted)

    def _all_flows(self) -> set[tuple[str, str]]:
        return set().union(*self.flows.values())

    def arm(self, round_number: int, epoch: int, phase: int) -> None:
        """Admit the round's keys; a phase in which nothing arrives has none."""
        plan = self.phases[epoch][phase]
        if plan["expected"]:
            deadline_ns = self.deadlines.deadline_ns((epoch, phase), plan["deadline_ns"])
            now_ns = time.monotonic_ns()
            self.service.set_clique(self.job, epoch, round_number, plan["expected"], deadline_ns, now_ns)
            self.armed[round_number] = ArmedRound(epoch, phase)

    def retire(self, round_number: int) -> dict[str, Any]:
        """Forget the round, and report on it; what belongs to no round counts since the last one was retired."""
        engine = self.service.engine
        passing, loading = self.service.passing, self.service.loading
        counts = Counters()
        armed = self.armed.pop(round_number, None)
        if armed is not None:
            counts = self.service.drop_clique(self.job, armed.epoch, round_number)
            if not passing:
                self.deadlines.observe((armed.epoch, armed.phase), counts)
        bypassed = counts.bypassed_index + counts.bypassed_source + (0 if passing else counts.bypassed_pool)
        high_water, in_use = engine.take_high_water(), engine.take_high_water()
        occupancy = self.occupancy.take(high_water, in_use, time.monotonic_ns())
        dropped = overflows(self.socket)
        report = {
            "complete": counts.complete,
            "timeout": counts.timeout,
            "collision": counts.collision + bypassed,
            "passthrough": counts.bypassed_pool if passing else 0,
            "late": counts.late,
            "duplicate": counts.duplicate,
            "longest_wait_ns": counts.longest_wait_ns,
            "high_water_slots": max(slots for _, slots in occupancy),
            "occupancy": occupancy,
            "refused": self._new_refusals(),
            "repair": self.account(),
            "engine_failure": self.service.failure,
            "engine_loading": loading,
            "socket_overflows": dropped - self._counted_overflows,
        }
        self._counted_overflows = dropped
        return report

    def _new_refusals(self) -> dict[str, int]:
        """Refusals since the last call, by the edge's checks and by the engine's; requests for repair included."""
        totals = self.receiver.refused() + self.repairs.refused() + self.service.refusals()
        new, self._counted_refusals = totals - self._counted_refusals, totals
        return dict(sorted(new.items()))

    def account(self) -> dict[str, int]:
        """What was sent again, and asked for, since the last call."""
        totals = self.repairs.counts()
        new, self._counted_repairs = totals - self._counted_repairs, totals
        return dict(sorted(new.items()))


def handle(edge: Edge, message: control.Message) -> dict[str, Any]:
    """Do what a message asks and return the answer, `type` included. Raises OSError, EngineError, KeyError."""
    match message["type"]:
        case "epoch":
            groups = [(group["group"], group["source"]) for group in message["groups"]]
            refused = ""
            try:
                edge.begin_epoch(message["epoch"], message["phases"], groups)
            except OSError as error:  # the epoch before carries traffic, and goes on
                refused = str(error)
            return {"type": "epoch_ready", "epoch": message["epoch"], "refused": refused}
        case "leave":
            edge.leave_epoch(message["epoch"])
            return {"type": "left", "epoch": message["epoch"]}
        case "probe_report":
            probe = message["probe"]
            return {"type": "probe_report", "probe": probe, "arrivals": edge.probes.get(probe, [])}
        case "arm":
            edge.arm(message["round"], message["epoch"], message["phase"])
            return {"type": "armed", "round": message["round"]}
        case "retire":
            return {"type": "retired", "round": message["round"], **edge.retire(message["round"])}
        case "account":
            return {"type": "accounted", "repair": edge.account()}
        case kind:
            raise EngineError(f"message {kind!r} is not one for an edge")


def parse_setup(message: control.Message) -> EdgeSetup:
    """The fields of a `setup` message. Raises EngineError if some are missing or unknown."""
    try:
        return EdgeSetup(**{name: value for name, value in message.items() if name != "type"})
    except TypeError as error:
        raise EngineError(f"setup: {error}") from error


def run(edge: Edge, channel: control.Channel) -> None:
    """Serve until `stop` or until the run is gone."""
    while True:
        serve_until_readable(edge, channel.fileno())
        message = channel.receive()
        if message is None or message["type"] == "stop":
            return
        answer = handle(edge, message)
        channel.send(answer.pop("type"), **answer)


def _serve(channel: control.Channel) -> None:
    setup = channel.receive()
    if setup is None:
        return
    edge = Edge(parse_setup(setup))
    buffer_bytes = receive_buffer_bytes(edge.socket)
    channel.send("hello", pid=os.getpid(), realtime=become_realtime(), receive_buffer_bytes=buffer_bytes)
    run(edge, channel)


def main() -> int:
    # An interrupt from the keyboard reaches the whole process group; it is the run that ends its processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return control.process_main("edge", "The aggregator of one island's edge; started by the run.", _serve)


if __name__ == "__main__":
    sys.exit(main())
