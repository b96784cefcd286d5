"""All ways to split islands into cliques."""

from collections.abc import Collection, Iterator, Sequence

from scheduler.policies.interface import Round


def partitions(islands: Sequence[str], sizes: Collection[int] | None = None) -> Iterator[Round]:
    """Every partition in which some clique has two islands; members keep the order given, single islands are left out.

    With `sizes` only those whose cliques of two or more have one of these sizes.
    """
    for blocks in _split(tuple(islands)):
        cliques = tuple(block for block in blocks if len(block) > 1)
        if cliques and (sizes is None or all(len(clique) in sizes for clique in cliques)):
            yield cliques


def _split(items: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ...]]:
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for smaller in _split(rest):
        yield ((first,), *smaller)
        for k, block in enumerate(smaller):
            yield (*smaller[:k], (first, *block), *smaller[k + 1 :])
