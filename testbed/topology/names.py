"""Node names for the emulation: every id becomes short, plain and unique, whatever it was."""

import re
import unicodedata
from collections.abc import Iterable

from scheduler.errors import TopologyError

# Interface names have at most 15 characters, and a node's name is followed by what the interface is for.
MAX_LENGTH = 8


def clean_names(ids: Iterable[str]) -> dict[str, str]:
    """A name matching [a-z0-9]+ of at most MAX_LENGTH characters for every id; ids that are fine keep theirs.

    Ids that come out alike get a number at the end, in their order. Raises TopologyError if an id appears twice.
    """
    wanted = list(ids)
    if len(set(wanted)) < len(wanted):
        twice = next(name for name in wanted if wanted.count(name) > 1)
        raise TopologyError(f"two nodes have the id {twice!r}; ids are unique")
    names = {name: name for name in wanted if _clean(name) == name}
    taken = set(names.values())
    for original in wanted:
        if original in names:
            continue
        base = _clean(original) or "n"
        name, number = base, 2
        while name in taken:
            name = f"{base[: MAX_LENGTH - len(str(number))]}{number}"
            number += 1
        taken.add(name)
        names[original] = name
    return {original: names[original] for original in wanted}


def _clean(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub("[^a-z0-9]", "", plain)[:MAX_LENGTH]
