"""Which datagrams an edge takes: well-formed, from a source that may send what it sends, and of this run's shape."""

import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aggregator.wire.packet import PROBE_VALUES, Header, Kind, PacketError, parse_packet


@dataclass(frozen=True)
class Shape:
    """What a run's contributions look like.

    `contributors`: id by source address; `shard_values`: values per shard; `key`: of their tags, None: not looked at.
    """

    job: int
    contributors: Mapping[str, int]
    shard_values: Sequence[int]
    values_per_chunk: int
    number_format: int = 0
    key: bytes | None = None


class Admission:
    """The checks that come before the engine. Every refusal is counted by reason in `refused`."""

    def __init__(self, shape: Shape):
        self._shape = shape
        self._flows: frozenset[tuple[bytes, str]] = frozenset()
        self.refused: Counter[str] = Counter()

    def allow(self, flows: Iterable[tuple[str, str]]) -> None:
        """Admit exactly these (group, source address) pairs from now on."""
        self._flows = frozenset((socket.inet_aton(group), source) for group, source in flows)

    def admit(self, datagram: memoryview, source_address: str, group: bytes) -> Header | None:
        """The header of a contribution or probe; None, and a count, for what is refused.

        Reasons: those of the parser, `group` (not a flow that was announced), `source` (the contributor id is not that
        of the address), `kind` (not for an edge), `epoch` (another run's job), `length` (no such shard or chunk).
        """
        try:
            header = parse_packet(datagram, self._shape.key)
        except PacketError as error:
            self.refused[error.refusal.name.lower()] += 1
            return None
        if (group, source_address) not in self._flows:
            reason = "group"
        elif self._shape.contributors.get(source_address) != header.source:
            reason = "source"
        elif header.job != self._shape.job:
            reason = "epoch"
        elif header.kind is Kind.PROBE:
            if header.value_count == PROBE_VALUES:
                return header
            reason = "length"
        elif header.kind is not Kind.CONTRIBUTION or header.flags or header.number_format != self._shape.number_format:
            reason = "kind"
        elif header.bitmap != 1 << header.source or header.contributors != 1:
            reason = "source"
        elif header.value_count == 0 or header.value_count != self._value_count(header.shard, header.chunk):
            reason = "length"
        else:
            return header
        self.refused[reason] += 1
        return None

    def _value_count(self, shard: int, chunk: int) -> int:
        """How many values the chunk has; at most 0 if there is no such chunk or shard."""
        shape = self._shape
        if shard >= len(shape.shard_values):
            return 0
        return min(shape.values_per_chunk, shape.shard_values[shard] - chunk * shape.values_per_chunk)
