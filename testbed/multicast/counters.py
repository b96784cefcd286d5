"""What routers dropped without saying so, from the kernel's own counters: it would otherwise look like loss on a link.

- `wrong_interface`: packets of a known (S,G) that came in where its entry does not expect them (RPF failures);
- `not_sent_on`: copies that an entry should have sent on and did not. A time to live that was used up is dropped there
  without any counter, but the interfaces' counters then lack what the entries have;
  The kernel counts both without locks, so that some are missed: less than RACE_SHARE is not told;
- `reverse_path`: dropped by rp_filter; `time_exceeded`: unicast whose time to live was used up.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from testbed.multicast.forwarding_cache import Channel, Entry, expected_entries, packets_out, read_cache
from testbed.multicast.groups import Tree

RACE_SHARE = 0.005

_ADVICE = {
    "wrong_interface": "arrived over a link that is not their tree's (RPF failures)",
    "not_sent_on": "were not sent on though their tree goes on (time to live used up)",
    "reverse_path": "were dropped by rp_filter",
    "time_exceeded": "had used up their time to live",
}


@dataclass(frozen=True)
class RouterDrops:
    """See the module."""

    wrong_interface: int = 0
    not_sent_on: int = 0
    reverse_path: int = 0
    time_exceeded: int = 0


class RouterCounters:
    """Counts over a whole run, also of trees that were removed meanwhile."""

    def __init__(self, pids: Mapping[str, int], routers: Collection[str]) -> None:
        self._pids = {router: pids[router] for router in routers}
        self._wrong: Counter[str] = Counter()
        self._copies: Counter[str] = Counter()
        self._noted: dict[str, set[Channel]] = {router: set() for router in routers}

    def note_removal(self, trees: Iterable[Tree]) -> None:
        """To be called before trees are removed: their counters go with them. Raises OSError."""
        for router, entries in expected_entries(trees).items():
            found = read_cache(self._pids[router])
            self._add(router, {channel: found[channel] for channel in entries if channel in found})
            self._noted[router] |= entries.keys()

    def _add(self, router: str, entries: Mapping[Channel, Entry]) -> None:
        self._wrong[router] += sum(entry.wrong_interface for entry in entries.values())
        self._copies[router] += sum(entry.packets * len(entry.goes) for entry in entries.values())

    def read(self, trees_moved: bool) -> dict[str, RouterDrops]:
        """What each router has dropped. To be called once, at the end. Raises OSError.

        Entries that have changed under way do not say how many copies they should have sent: then none are missed.
        """
        drops = {}
        for router, pid in self._pids.items():
            # An entry that was noted may still be there: routers take a while to forget.
            found = read_cache(pid)
            self._add(router, {channel: found[channel] for channel in found.keys() - self._noted[router]})
            lacking = self._copies[router] - packets_out(pid)
            drops[router] = RouterDrops(
                self._wrong[router],
                lacking if not trees_moved and lacking > RACE_SHARE * self._copies[router] else 0,
                _counter(pid, "netstat", "TcpExt", "IPReversePathFilter"),
                _counter(pid, "snmp", "Icmp", "OutTimeExcds"),
            )
        return drops


def _counter(pid: int, table: str, block: str, name: str) -> int:
    """A counter of /proc/net/snmp and its like: a line of names, then one of values, both beginning with the block."""
    lines = Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()
    names, values = (line.split() for line in lines if line.startswith(f"{block}:"))
    return int(dict(zip(names, values, strict=True)).get(name, 0))


def drop_warnings(drops: Mapping[str, RouterDrops]) -> list[str]:
    """One line per kind of drop that happened."""
    warnings = []
    for kind, advice in _ADVICE.items():
        counts = {router: asdict(each)[kind] for router, each in drops.items() if asdict(each)[kind]}
        if counts:
            where = ", ".join(f"{router} {count}" for router, count in counts.items())
            warnings.append(f"{sum(counts.values())} packets {advice}: {where}")
    return warnings
