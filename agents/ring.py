"""One island of synchronous training by ring all-reduce, with PyTorch's Gloo over TCP: the baseline without multicast.

    python -m agents.ring --control-fd N

Runs on the island's host. `setup` tells it its place in the ring; after `go` it trains and all-reduces its parameters,
step by step, and answers `done` with the times of every step. Gloo reduces by a ring, in the order of the ranks.
"""

import os
import time
from datetime import timedelta
from pathlib import Path

import numpy as np

from agents.pinned import ensure_pinned
from agents.workloads import load_workload
from agents.workloads.interface import Setting, Trainer
from agents.workloads.pytorch import torch
from aggregator.wire.control import Channel, Message, process_main

_TIMEOUT = timedelta(seconds=60)


def _join(message: Message) -> None:
    """Connect to all others; returns when all are there."""
    os.environ["GLOO_SOCKET_IFNAME"] = message["interface"]
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{message['meeting_point']}",
        rank=message["rank"],
        world_size=message["world_size"],
        timeout=_TIMEOUT,
    )


def _train(trainer: Trainer, message: Message) -> dict[str, list[int]]:
    """Train `steps` steps; returns the nanoseconds of each: in all, and in the exchange."""
    own = trainer.parameters()
    # What a round of the other schedules carries: the parameters, and padding up to the payload.
    payload = np.zeros(message["values"], np.float32)
    tensor = torch.frombuffer(payload, dtype=torch.float32)
    steps: list[int] = []
    exchanges: list[int] = []
    torch.distributed.barrier()
    began_ns = time.monotonic_ns()
    for step in range(message["steps"]):
        trainer.train(step)
        time.sleep(max(began_ns + message["step_ns"] - time.monotonic_ns(), 0) / 1e9)
        exchange_ns = time.monotonic_ns()
        payload[: len(own)] = trainer.parameters()
        torch.distributed.all_reduce(tensor)
        payload /= message["world_size"]
        trainer.load_parameters(payload[: len(own)].astype(own.dtype))
        ended_ns = time.monotonic_ns()
        steps.append(ended_ns - began_ns)
        exchanges.append(ended_ns - exchange_ns)
        began_ns = ended_ns
    return {"steps_ns": steps, "exchanges_ns": exchanges}


def _serve(channel: Channel) -> None:
    trainer: Trainer | None = None
    setup: Message = {}
    while (message := channel.receive()) is not None and message["type"] != "stop":
        match message["type"]:
            case "setup":
                setup = message
                setting = Setting(Path(setup["workload_dir"]), setup["seed"], setup["world_size"], setup["values"])
                trainer = load_workload(setup["workload"]).island(setting, setup["island_id"])
                channel.send("hello", pid=os.getpid())
            case "join":
                _join(setup)
                channel.send("joined")
            case "go" if trainer is not None:
                channel.send("done", **_train(trainer, {**setup, **message}))
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
