"""Which datagrams an edge takes: well-formed, from a source that may send what it sends, and of this run's shape."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address

from aggregator.wire.batch import PacketRecord
from aggregator.wire.packet import Kind, Refusal

_REFUSALS = {int(refusal): refusal.name.lower() for refusal in Refusal}


class Admission:
    """The checks that come before the engine. Every refusal is counted by reason in `refused`."""

    def __init__(self, job: int, contributors: Mapping[str, int], shard_values: Sequence[int], values_per_chunk: int):
        """`contributors`: id by source address. `shard_values`: how many values each shard has."""
        self._job = job
        self._contributors = {int(IPv4Address(address)): number for address, number in contributors.items()}
        self._shard_values = shard_values
        self._values_per_chunk = values_per_chunk
        self._flows: frozenset[tuple[int, int]] = frozenset()
        self.refused: Counter[str] = Counter()

    def allow(self, flows: Iterable[tuple[str, str]]) -> None:
        """Admit exactly these (group, source address) pairs from now on."""
        self._flows = frozenset((int(IPv4Address(group)), int(IPv4Address(source))) for group, source in flows)

    def admit(self, record: PacketRecord) -> bool:
        """Whether a datagram is a contribution or probe that this edge takes; what is refused is counted.

        Reasons: those of the parser, `group` (not a flow that was announced), `source` (the contributor id is not that
        of the address), `kind` (not for an edge), `epoch` (another run's job), `length` (no such shard or chunk).
        """
        reason = self._refusal(record)
        if reason is None:
            return True
        self.refused[reason] += 1
        return False

    def _refusal(self, record: PacketRecord) -> str | None:
        if record.refusal:
            return _REFUSALS[record.refusal]
        if (record.destination_address, record.source_address) not in self._flows:
            return "group"
        if self._contributors.get(record.source_address) != record.source:
            return "source"
        if record.job != self._job:
            return "epoch"
        if record.kind == Kind.PROBE:
            return None
        if record.kind != Kind.CONTRIBUTION or record.flags or record.number_format:
            return "kind"
        if record.bitmap != 1 << record.source or record.contributors != 1:
            return "source"
        if record.value_count != self._value_count(record.shard, record.chunk):
            return "length"
        return None

    def _value_count(self, shard: int, chunk: int) -> int:
        """How many values the chunk has; at most 0 if there is no such chunk or shard."""
        if shard >= len(self._shard_values):
            return 0
        return min(self._values_per_chunk, self._shard_values[shard] - chunk * self._values_per_chunk)
