"""One island of synchronous training by ring all-reduce: the baseline without multicast and aggregators.

    python -m agents.ring --control-fd N

Runs on the island's host. `setup` tells it its place in the ring, and `join` has it connect; after `go` it trains and
all-reduces its parameters, step by step, and answers `done` with the times of every step.
"""

import os
import time
from pathlib import Path

import numpy as np

from agents.pinned import ensure_pinned
from agents.ring_transports import Ring, make_ring
from agents.workloads import load_workload
from agents.workloads.interface import Setting, Trainer
from aggregator.wire.control import Channel, Message, process_main


def _train(trainer: Trainer, ring: Ring, message: Message) -> dict[str, list[int]]:
    """Train `steps` steps; returns the nanoseconds of each: in all, and in the exchange."""
    own = trainer.parameters()
    # What a round of the other schedules carries: the parameters, and padding up to the payload.
    payload = np.zeros(message["values"], np.float32)
    steps: list[int] = []
    exchanges: list[int] = []
    ring.all_reduce(np.zeros(message["world_size"], np.float32))  # a barrier: all begin at the same time
    began_ns = time.monotonic_ns()
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
    return {"steps_ns": steps, "exchanges_ns": exchanges}


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
