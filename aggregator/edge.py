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
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator import sockets
from aggregator.admission import Shape
from aggregator.engine import BYPASSED, INDEX_WAYS, Engine, EngineConfig, EngineError, empty_headers
from aggregator.engines import make_engine
from aggregator.engines.library_engine import LibraryEngine
from aggregator.engines.passthrough import PassthroughEngine
from aggregator.native_loop import NativeLoop, Turn
from aggregator.realtime import become_realtime
from aggregator.receiver import BATCH, NativeReceiver, make_receiver
from aggregator.results import ResultStreams
from aggregator.wire import control

_ROUNDS_REMEMBERED = 4
_IDLE_MS = 1000.0
_REST_MS = 2.0
_COUNTS = ("complete", "timeout", "collision", "passthrough", "late", "duplicate")
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
        self._engine_config = EngineConfig(
            slots=setup["slots"],
            values_per_chunk=values_per_chunk,
            index_entries=index_entries(setup["slots"], chunks),
            hash_key=self.job,
            max_batch=BATCH,
        )
        self.engine = make_engine(setup["engine"])
        self.engine.open(self._engine_config)
        self._failed: Engine | None = None
        self._held = 0
        self._refused_by_failed: Counter[str] = Counter()
        self.engine_failure = ""
        self.socket = sockets.open_receiver()
        shape = Shape(self.job, setup["contributors"], shard_values, values_per_chunk)
        self.receiver = make_receiver(self.socket, shape)
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
        self.armed: dict[int, tuple[int, dict[str, int]]] = {}
        self.out = empty_headers(BATCH)
        self._counted_refusals: dict[str, int] = {}
        self._counted_overflows = 0

    def close(self) -> None:
        """Close the sockets and the engine."""
        self.socket.close()
        self.results.close()
        self.engine.close()

    # --- packets ---

    def receive(self) -> bool:
        """Take a batch from the socket and submit it; whether the socket is empty now."""
        count, emptied = self.receiver.receive()
        self.note_probes()
        if count:
            self._submit(count, time.monotonic_ns())
        return emptied

    def note_probes(self) -> None:
        """Keep what has arrived of probes, for `probe_report`."""
        for probe in self.receiver.take_probes():
            self.probes.setdefault(probe.probe, []).append((probe.group, probe.sent_ns, probe.arrival_ns))

    def _submit(self, count: int, now_ns: int) -> None:
        """Give the first `count` rows to the engine. No results wait in it, so it takes the whole batch."""
        headers = self.receiver.headers
        try:
            accepted = self.engine.submit(headers, self.receiver.payloads, count, now_ns)
            if accepted != count:
                raise EngineError(f"took {accepted} of {count} contributions although no results were waiting")
        except Exception as error:
            self.fall_back(error, count, now_ns)
            return
        for i, verdict in enumerate(headers.verdict[:count].tolist()):
            if verdict in _BYPASSED:
                self.results.add_bypassed(self.receiver.datagram(i), int(headers.shard[i]))

    def fall_back(self, error: Exception, held: int, now_ns: int) -> None:
        """Go on without an engine that has failed: pass through what comes. Once more it is asked for what it holds.

        The first `held` rows are those of the batch that it failed with.
        """
        if isinstance(self.engine, PassthroughEngine):
            raise error
        self.engine_failure = f"{type(error).__name__}: {error}"
        print(f"edge: engine failed, passing through: {self.engine_failure}", file=sys.stderr)
        self._held = held
        self._failed, self.engine = self.engine, PassthroughEngine()
        self.engine.open(replace(self._engine_config, collision_policy="bypass-new"))
        for round_number, (epoch, plan) in self.armed.items():
            self.engine.set_clique(self.job, epoch, round_number, plan["expected"], plan["deadline_ns"])
        with contextlib.suppress(Exception):
            self._refused_by_failed = _refusals(self._failed)
            self._failed.flush(now_ns)

    def _poll(self, payloads: NDArray[np.int32], now_ns: int) -> int:
        """Poll the engine; one that has failed comes first, and is given up when it is empty or fails again."""
        if self._failed is None:
            try:
                return self.engine.poll(self.out, payloads, now_ns)
            except Exception as error:
                self.fall_back(error, 0, now_ns)
        assert self._failed is not None
        try:
            count = self._failed.poll(self.out, payloads, now_ns)
        except Exception:
            count = 0
        # The batch that is held back needs room: until there is, the failed engine stays, empty.
        if count == 0 and self.results.room() >= BATCH:
            self._failed = None
            # The batch that it failed with may be in sums that have just gone out. A host drops what overlaps with
            # what it has, so the single contributions have to come after the sums.
            held, self._held = self._held, 0
            if held:
                self._submit(held, now_ns)
        return count

    def serve(self, now_ns: int) -> None:
        """Send what is due. On return the engine has no result that is due, or the ring is full."""
        self.results.send(now_ns)
        while self.results.room():
            payloads = self.results.free_payloads(BATCH)
            count = self._poll(payloads, now_ns)
            self.results.add_results(self.out, count)
            self.results.send(now_ns)
            if count == 0 or (count < len(payloads) and self._failed is None):
                return

    def can_receive(self) -> bool:
        """Whether a whole batch could be bypassed, and its results be queued as well."""
        return self._failed is None and self.results.room() >= 2 * BATCH

    def wait_ms(self, now_ns: int) -> float:
        """How long nothing is due unless something arrives."""
        due_ns = self.results.next_send_ns()
        deadline_ns = self.engine.next_deadline_ns() if self._failed is None else None
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
            case "leave":
                self._leave_epoch(message["epoch"])
                return {"type": "left", "epoch": message["epoch"]}
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
        self._join(wanted, joined)

    def _leave_epoch(self, epoch: int) -> None:
        """Leave the groups of an epoch whose rounds are over; those that another epoch has as well stay joined."""
        joined = self._all_flows()
        del self.flows[epoch], self.phases[epoch]
        self._join(self._all_flows(), joined)

    def _join(self, wanted: set[tuple[str, str]], joined: set[tuple[str, str]]) -> None:
        """Join and leave, so that exactly `wanted` is received. A flow to the edge's own address needs no joining."""
        for group, source in sorted(wanted - joined):
            if group != self.address:
                sockets.join(self.socket, group, source, self.address)
        for group, source in sorted(joined - wanted):
            if group != self.address:
                sockets.leave(self.socket, group, source, self.address)
        self.receiver.allow(wanted)

    def _all_flows(self) -> set[tuple[str, str]]:
        return set().union(*self.flows.values())

    def _arm(self, round_number: int, epoch: int, phase: int) -> None:
        """Admit the round's keys; a phase in which nothing arrives has none."""
        plan = self.phases[epoch][phase]
        if plan["expected"]:
            self.engine.set_clique(self.job, epoch, round_number, plan["expected"], plan["deadline_ns"])
            self.armed[round_number] = (epoch, plan)

    def _retire(self, round_number: int) -> dict[str, Any]:
        """Forget the round; counts that belong to no round are those since the last one was retired."""
        high_water = self.engine.stats().high_water_slots
        self.engine.reset_high_water()
        report: dict[str, Any] = dict.fromkeys(_COUNTS, 0)
        passing = isinstance(self.engine, PassthroughEngine)
        if round_number in self.armed:
            counts = self.engine.drop_clique(self.job, self.armed.pop(round_number)[0], round_number)
            report = {
                "complete": counts.complete,
                "timeout": counts.timeout,
                "collision": counts.collision + counts.bypassed_index + (0 if passing else counts.bypassed_pool),
                "passthrough": counts.bypassed_pool if passing else 0,
                "late": counts.late,
                "duplicate": counts.duplicate,
            }
        overflows = sockets.overflows(self.socket)
        report["high_water_slots"] = high_water
        report["refused"] = self._new_refusals()
        report["engine_failure"] = self.engine_failure
        report["socket_overflows"] = overflows - self._counted_overflows
        self._counted_overflows = overflows
        return report

    def _new_refusals(self) -> dict[str, int]:
        """Refusals since the last call, by the edge's checks and by the engine's."""
        totals = self.receiver.refused() + _refusals(self.engine) + self._refused_by_failed
        new = {reason: total - self._counted_refusals.get(reason, 0) for reason, total in totals.items()}
        self._counted_refusals = dict(totals)
        return {reason: count for reason, count in sorted(new.items()) if count}


def _refusals(engine: Engine) -> Counter[str]:
    """What an engine has refused, by the reasons of `retired`."""
    counters = engine.stats().counters
    return Counter(epoch=counters.refused_epoch, source=counters.refused_source, length=counters.refused_length)


def run(edge: Edge, channel: control.Channel) -> None:
    """Serve until `stop` or until the run is gone."""
    # Waking up costs as much as a packet does. So after each batch the socket is left alone for a while, as network
    # cards do it: what arrives meanwhile is taken in one go, and only run control and deadlines end the rest.
    if isinstance(edge.receiver, NativeReceiver) and isinstance(edge.engine, LibraryEngine):
        turns = _turns_in_c(edge, edge.receiver, edge.engine, channel.fileno())
    else:
        turns = _turns(edge, channel.fileno())
    for _ in turns:
        message = channel.receive()
        if message is None or message["type"] == "stop":
            return
        answer = edge.handle(message)
        channel.send(answer.pop("type"), **answer)


def _turns(edge: Edge, control_fd: int) -> Iterator[None]:
    """Serve, and yield whenever a message waits."""
    resting, watching = select.poll(), select.poll()
    for poller in (resting, watching):
        poller.register(control_fd, select.POLLIN)
    watching.register(edge.socket.fileno(), select.POLLIN)
    rest_ms = 0.0
    while True:
        wait_ms = edge.wait_ms(time.monotonic_ns())
        if rest_ms or not edge.can_receive():
            ready = resting.poll(min(wait_ms, rest_ms or _IDLE_MS))
        else:
            ready = watching.poll(wait_ms)
        rest_ms = 0.0
        if any(fd != control_fd for fd, _ in ready) and edge.receive():
            rest_ms = _REST_MS
        edge.serve(time.monotonic_ns())
        if any(fd == control_fd for fd, _ in ready):
            yield


def _turns_in_c(edge: Edge, receiver: NativeReceiver, engine: LibraryEngine, control_fd: int) -> Iterator[None]:
    """As `_turns`, with the loop in C for as long as the engine lives."""
    loop = NativeLoop(receiver, engine, edge.results, edge.out, int(_REST_MS * 1e6))
    while True:
        match loop.run(control_fd):
            case Turn.CONTROL:
                yield
            case Turn.PROBES:
                edge.note_probes()
            case Turn.ENGINE_FAILED:
                edge.note_probes()
                error = EngineError("took a part of a batch although no results were waiting")
                edge.fall_back(error, loop.held(), time.monotonic_ns())
                yield from _turns(edge, control_fd)


def main() -> int:
    # An interrupt from the keyboard reaches the whole process group; it is the run that ends its processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = control.inherited("The aggregator of one island's edge; started by the run.")
    try:
        setup = channel.receive()
        if setup is None:
            return 0
        edge = Edge(setup)
        buffer_bytes = sockets.receive_buffer_bytes(edge.socket)
        channel.send("hello", pid=os.getpid(), realtime=become_realtime(), receive_buffer_bytes=buffer_bytes)
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
