"""One island of synchronous training by ring all-reduce: the baseline without multicast and aggregators.

    python -m agents.ring --control-fd N

Runs on the island's host. `setup` tells it its place in the ring, and `join` has it connect; after `go` it trains and
all-reduces its parameters, step by step, and answers `done` with the times of every step, and with what the model is
worth in between if it was asked for (`evaluate_every`).
"""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from agents.pinned import ensure_pinned
from agents.ring_transports import Ring, make_ring
from agents.workloads import load_workload
from agents.workloads.interface import Setting, Trainer
from aggregator.wire.control import Channel, Message, process_main


def _train(trainer: Trainer, ring: Ring, message: Message) -> dict[str, Any]:
    """Train `steps` steps; returns the ns of each, in all and in the exchange, and evaluations by the steps done."""
    own = trainer.parameters()
    # What a round of the other schedules carries: the parameters, and padding up to the payload.
    payload = np.zeros(message["values"], np.float32)
    steps: list[int] = []
    exchanges: list[int] = []
    every = message["evaluate_every"]
    curve = {0: trainer.evaluate()} if every else {}
    began_ns = _all_begin(ring, message)
    for step in range(message["steps"]):
        trainer.train(step)
        time.sleep(max(began_ns + message["step_ns"] - time.monotonic_ns(), 0) / 1e9)
        exchange_ns = time.monotonic_ns()
        payload[: len(own)] = trainer.parameters()
        ring.all_reduce(payload)
        payload /= message["world_size"]
        trainer.load_parameters(payload[: len(own)].astype(own.dtype))
        ended_ns = time.monotonic_ns()
        steps.append(ended_ns - began_ns)
        exchanges.append(ended_ns - exchange_ns)
        began_ns = ended_ns
        if every and (step + 1) % every == 0:
            curve[step + 1] = trainer.evaluate()
            began_ns = _all_begin(ring, message)
    return {"steps_ns": steps, "exchanges_ns": exchanges, "curve": curve}


def _all_begin(ring: Ring, message: Message) -> int:
    """Wait until all are here, so that they go on at the same time; returns it, in ns."""
    ring.all_reduce(np.zeros(message["world_size"], np.float32))
    return time.monotonic_ns()


def _serve(channel: Channel) -> None:
    trainer: Trainer | None = None
    ring: Ring | None = None
    setup: Message = {}
    while (message := channel.receive()) is not None and message["type"] != "stop":
        match message["type"]:
            case "setup":
                setup = message
                setting = Setting(Path(setup["workload_dir"]), setup["seed"], setup["world_size"], setup["values"])
                trainer = load_workload(setup["workload"]).island(setting, setup["island_id"])
                ring = make_ring(setup)
                channel.send("hello", pid=os.getpid())
            case "join" if ring is not None:
                ring.join()
                channel.send("joined")
            case "go" if trainer is not None and ring is not None:
                channel.send("done", **_train(trainer, ring, {**setup, **message}))
            case "evaluate" if trainer is not None:
                channel.send("evaluated", **trainer.evaluate())
            case kind:
                raise ValueError(f"a ring process cannot do {kind!r} now")


def main() -> int:
    ensure_pinned()
    description = "An island's process of the ring all-reduce baseline, started by a run."
    return process_main("ring", description, _serve)


if __name__ == "__main__":
    raise SystemExit(main())
