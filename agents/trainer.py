"""The trainer process of an island: trains, leaves contributions in the exchange area, averages what came in.

Training is really done, and then lasts as long as the run says: an emulated accelerator takes its time.

    python -m agents.trainer --control-fd N

Run control is docs/run-control.md. It runs at the lowest ordinary priority: it must never hold up a data plane.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.exchange import ExchangeSettings, IslandExchange
from agents.exchange_area import map_exchange_area
from agents.pinned import ensure_pinned
from agents.workloads import load_workload
from agents.workloads.interface import Setting
from aggregator.wire.control import Channel, Message, process_main


@dataclass(frozen=True)
class _Epoch:
    """One schedule: the scale of its numbers, and the size of this island's clique in each phase."""

    scale_exponents: list[int]
    clique_sizes: list[int]


class TrainerProcess:
    """Answers run control, one message at a time."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._exchange: IslandExchange | None = None
        self._epochs: dict[int, _Epoch] = {}

    def serve(self) -> None:
        """Until `stop`, or until the run is gone. Raises ValueError or OSError when it cannot go on."""
        while (message := self._channel.receive()) is not None and message["type"] != "stop":
            self._answer(message)

    def _answer(self, message: Message) -> None:
        match message["type"]:
            case "setup":
                self._exchange = _set_up(message)
                self._channel.send("hello", pid=os.getpid(), realtime=False)
            case "epoch":
                sizes = [phase["members"].bit_count() for phase in message["phases"]]
                self._epochs[message["epoch"]] = _Epoch(message["scale_exponents"], sizes)
                self._channel.send("epoch_ready", epoch=message["epoch"])
            case "train":
                self._train(message)
            case "contribute":
                self._contribute(message)
            case "apply":
                applied = self._island().apply(message["round"])
                self._channel.send("applied", round=message["round"], **vars(applied))
            case "evaluate":
                self._channel.send("evaluated", **self._island().trainer.evaluate())
            case kind:
                raise ValueError(f"a trainer does not know the message {kind!r}")

    def _train(self, message: Message) -> None:
        began_ns = time.monotonic_ns()
        first_step = message["first_step"]
        for step in range(first_step, first_step + message["steps"]):
            self._island().trainer.train(step)
        now_ns = time.monotonic_ns()
        time.sleep(max(message["done_ns"] - now_ns, 0) / 1e9)
        self._channel.send("trained", round=message["round"], steps=message["steps"], compute_ns=now_ns - began_ns)

    def _contribute(self, message: Message) -> None:
        island = self._island()
        epoch = self._epochs[message["epoch"]]
        island.set_scale(epoch.scale_exponents)
        contribution = island.contribute(message["round"], epoch.clique_sizes[message["phase"]])
        self._channel.send("ready", round=message["round"], **vars(contribution))

    def _island(self) -> IslandExchange:
        if self._exchange is None:
            raise ValueError("a trainer was given work before its setup")
        return self._exchange


def _set_up(message: Message) -> IslandExchange:
    names: Sequence[str] = message["islands"]
    settings = ExchangeSettings.from_message(message["exchange"])
    values = message["values"] * settings.lanes
    setting = Setting(Path(message["workload_dir"]), message["seed"], len(names), values)
    workload = load_workload(message["workload"])
    area = map_exchange_area(
        Path(message["exchange_area"]), message["depth"], message["values"], message["values_per_chunk"]
    )
    trainer = workload.island(setting, message["island_id"])
    return IslandExchange(trainer, workload.tensors(setting), message["island_id"], area, settings)


def lower_priority() -> None:
    """Yield to everything else on the machine."""
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, 19)


def main() -> int:
    ensure_pinned()
    lower_priority()
    description = "The trainer process of an island, started by a run."
    return process_main("trainer", description, lambda channel: TrainerProcess(channel).serve())


if __name__ == "__main__":
    raise SystemExit(main())
