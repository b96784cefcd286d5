"""The summary of a run, made once more from its events alone: they hold all that it was made from."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from scheduler.plan import plan_from_json
from testbed.run.accounting import LinkLoad
from testbed.run.failures import Reaction
from testbed.run.frames import frame_payload
from testbed.run.outages import Outage
from testbed.run.program import Epoch, make_epoch
from testbed.run.repairs import Closing
from testbed.run.rounds import RoundRecord
from testbed.run.settings import RunSettings, settings_from_json
from testbed.run.startup import MemoryBudget
from testbed.run.strain import Strain
from testbed.run.summary import Outcome, summarise
from testbed.run.supervision import Restart
from testbed.run.swaps import Swap
from testbed.topology.files import topology_from_json

Event = Mapping[str, Any]


def replay(lines: Iterable[str]) -> dict[str, Any]:
    """The summary that the run has made of these lines of its events.jsonl. Raises ValueError if it did not finish."""
    return summarise(outcome_of([json.loads(line) for line in lines]))


def outcome_of(events: Iterable[Event]) -> Outcome:
    """What the summary of a run is made from. Raises ValueError if the run did not finish."""
    by_kind: dict[str, list[Event]] = {}
    for event in events:
        by_kind.setdefault(event["event"], []).append(event)
    if "finished" not in by_kind:
        raise ValueError("these are not all events of a run that finished: there is no event `finished`")
    [planned], [finished] = by_kind["planned"], by_kind["finished"]
    settings = settings_from_json(planned["settings"])
    # An epoch that was given up has left its number to a later one.
    ready = {event["epoch"]: event for event in by_kind["multicast_ready"]}
    rounds = by_kind.get("round", [])
    return Outcome(
        settings=settings,
        epochs=[_epoch(number, ready[number], planned, settings) for number in finished["epochs"]],
        records=[_record(event) for event in rounds],
        strains=[_strain(event["strain"]) for event in rounds],
        loads=[LinkLoad(**load) for load in finished["loads"]],
        saving=finished["saving"],
        evaluations=finished["evaluations"],
        memory=MemoryBudget(**finished["memory"]),
        links_kind=planned["links_kind"],
        multicast_plane=planned["multicast_plane"],
        reactions=[_reaction(event) for event in by_kind.get("links_changed", [])],
        swaps=[Swap(**swap) for swap in finished["swaps"]],
        closing=Closing(**finished["closing"]),
        run_dir=planned["run_dir"],
        warnings=finished["warnings"],
    )


def _epoch(number: int, ready: Event, planned: Event, settings: RunSettings) -> Epoch:
    framing = frame_payload(settings.scale.size_bytes(settings.payload_gb))
    topology = topology_from_json(planned["topology"], settings.topology)
    plan = plan_from_json(ready["plan"])
    return make_epoch(number, plan, topology, framing, settings.scale, settings.hosts_per_island, settings.copies)


def _record(event: Event) -> RoundRecord:
    """A round without the counters of its links, which `finished` has summed up."""
    return RoundRecord(
        number=event["round"],
        epoch=event["epoch"],
        phase=event["phase"],
        start_ns=event["start_ns"],
        completion_ns=event["completion_ns"],
        planned_ns=event["planned_ns"],
        packetisation_ns=event["packetisation_ns"],
        training_began_ns=event["training_began_ns"],
        ended_ns=event["ended_ns"],
        trained=event["trained"],
        ready=event["prepared"],
        done=event["done"],
        retired=event["retired"],
        applied=event["applied"],
        restarts=tuple(Restart(**restart) for restart in event["restarts"]),
        exact=event["exact"],
        digests_equal=event["digests_equal"],
        mixing=np.array(event["mixing"]),
        lan_exchange_ns=event["lan_exchange_ns"],
        before={},
        after={},
        routing_bytes={},
        disturbed=event["disturbed"],
        outages=[Outage(**outage) for outage in event["outages"]],
    )


def _strain(content: Event) -> Strain:
    figures: dict[str, Any] = {name: math.inf if value is None else value for name, value in content.items()}
    del figures["trustworthy"]
    return Strain(**{**figures, "reasons": tuple(content["reasons"])})


def _reaction(event: Event) -> Reaction:
    fields = {name: value for name, value in event.items() if name not in {"event", "monotonic_ns"}}
    return Reaction(**{**fields, "down": tuple(event["down"]), "cut_off": tuple(event["cut_off"])})
