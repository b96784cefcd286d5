"""What the links of a whole run carried, beside what they should have, by its plans."""

from collections.abc import Sequence

from testbed.run.accounting import (
    PROBING_BYTES,
    UNPLANNED_BYTES,
    LinkLoad,
    link_loads,
    planned_streams,
    unsummed_bytes,
)
from testbed.run.preparing import Prepared
from testbed.run.program import Epoch
from testbed.run.repairs import fetched_bytes, last_hop_repair_bytes
from testbed.run.rounds import RoundRecord


def run_loads(
    prepared: Prepared, epochs: Sequence[Epoch], records: Sequence[RoundRecord], introductions: int
) -> list[LinkLoad]:
    """What each link should have carried, and did, in the rounds in which no link failed.

    `introductions`: how often an epoch was brought into operation, which takes membership reports and probes.
    """
    settings, topology = prepared.settings, prepared.topology
    by_number = {epoch.number: epoch for epoch in epochs}
    steady = [record for record in records if not record.disturbed]
    rounds = [(by_number[record.epoch], record.phase) for record in steady]
    hosts = settings.hosts_per_island
    planned = planned_streams(rounds, topology, settings.aggregation, hosts)
    unicast = planned_streams(rounds, topology, settings.aggregation, hosts, copies=True)
    # Where hosts sum, nothing is summed at the edges by plan.
    extra = unsummed_bytes(steady, prepared.framing, hosts) if settings.aggregation == "edge" else {}
    repairs = last_hop_repair_bytes(steady, hosts)
    anywhere = UNPLANNED_BYTES + PROBING_BYTES * (introductions - 1) + fetched_bytes(steady, prepared.framing)
    allowed = {direction: anywhere + repairs.get(direction, 0) for direction in planned}
    return link_loads(planned, unicast, extra, prepared.framing, steady, allowed)
