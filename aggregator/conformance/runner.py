"""Runs traces through engines, and compares every verdict, result, count and deadline."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import zip_longest

import numpy as np

from aggregator.conformance.traces import Announce, Drop, Flush, Packets, Trace, steps
from aggregator.engine import Engine, HeaderBatch, empty_headers

BATCH_SIZES = (1, 7, 64)
_READ_BY_SUBMIT = ("job", "epoch", "round", "shard", "chunk", "value_count", "source")
_WRITTEN_BY_POLL = ("job", "epoch", "round", "shard", "chunk", "value_count", "reason", "contributors", "bitmap")


def observe(engine: Engine, trace: Trace, batch_size: int) -> Iterator[tuple[str, bytes]]:
    """Everything that the engine lets its caller see, as (what it is, bytes), in order.

    Opens the engine and closes it in the end. A result's bytes are its header fields and its values.
    """
    engine.open(trace.config)
    headers, out = empty_headers(batch_size), empty_headers(trace.poll_capacity)
    values = trace.config.values_per_chunk
    payloads = np.zeros((batch_size, values), np.int32)
    out_payloads = np.zeros((trace.poll_capacity, values), np.int32)

    def results(now_ns: int) -> Iterator[tuple[str, bytes]]:
        count = trace.poll_capacity
        while count == trace.poll_capacity:
            count = engine.poll(out, out_payloads, now_ns)
            for i in range(count):
                header = b"".join(getattr(out, name)[i].tobytes() for name in _WRITTEN_BY_POLL)
                label = f"result {_result_text(out, i)} at {now_ns} ns"
                yield label, header + out_payloads[i, : int(out.value_count[i])].tobytes()
        yield f"next deadline after polling at {now_ns} ns", repr(engine.next_deadline_ns()).encode()

    batches = 0
    now_ns = 0
    for step in steps(trace):
        match step:
            case Announce():
                engine.set_clique(step.job, step.epoch, step.round, step.expected, step.deadline_ns)
            case Drop():
                yield (
                    f"counts of round {step.round}",
                    repr(asdict(engine.drop_clique(step.job, step.epoch, step.round))).encode(),
                )
            case Flush():
                engine.flush(step.now_ns)
                yield from results(step.now_ns)
                yield f"counts at {step.now_ns} ns", repr(engine.stats()).encode()
                yield f"high water at {step.now_ns} ns", repr(engine.take_high_water()).encode()
            case Packets():
                for start in range(0, len(step.now_ns), batch_size):
                    part = slice(start, start + batch_size)
                    count = len(step.now_ns[part])
                    now_ns = int(step.now_ns[part][-1])
                    done = 0
                    while done < count:
                        for name in _READ_BY_SUBMIT:
                            getattr(headers, name)[: count - done] = getattr(step, name)[part][done:]
                        payloads[: count - done] = step.payloads[part][done:]
                        accepted = engine.submit(headers, payloads, count - done, now_ns)
                        label = f"verdicts of packets {start + done} to {start + done + accepted} at {now_ns} ns"
                        yield label, headers.verdict[:accepted].tobytes()
                        done += accepted
                        if done < count:
                            yield from results(now_ns)
                    batches += 1
                    if batches % trace.poll_every == 0:
                        yield from results(now_ns)
    yield "totals", repr(engine.stats()).encode()
    engine.close()


def _result_text(out: HeaderBatch, i: int) -> str:
    return ", ".join(f"{name} {getattr(out, name)[i]}" for name in _WRITTEN_BY_POLL)


def first_difference(engine: Engine, reference: Engine, trace: Trace, batch_size: int) -> str | None:
    """Where the engine first differs from the reference, in one line; None if it never does."""
    pairs = zip_longest(observe(engine, trace, batch_size), observe(reference, trace, batch_size))
    for number, (got, wanted) in enumerate(pairs):
        if got == wanted:
            continue
        if got is None or wanted is None or got[0] != wanted[0]:
            return f"step {number}: got {_label(got)}; the reference: {_label(wanted)}"
        return f"step {number}: {got[0]}: got {_excerpt(got[1], wanted[1])}"
    return None


def _label(observation: tuple[str, bytes] | None) -> str:
    return "nothing more" if observation is None else observation[0]


def _excerpt(got: bytes, wanted: bytes) -> str:
    at = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted)))
    window = slice(max(0, at - 8), at + 40)
    return f"…{got[window]!r}, the reference …{wanted[window]!r} (from byte {at})"
