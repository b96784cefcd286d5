"""`triangles`: a round inside the regions, then a round of triangles across them.

The second round is the partition into cliques of one island per region that has the smallest round time without
aggregator memory, and it stays the same with memory: a sweep over memory compares one schedule with itself. (With
memory other partitions can be a little shorter; `search` finds those.)
"""

import math
from collections.abc import Iterator
from itertools import permutations

from scheduler.errors import PolicyError
from scheduler.policies.interface import Problem, Round, Schedule


class Triangles:
    """Two rounds of triangles on three regions of three islands: A = 7/4."""

    name = "triangles"

    def schedule(self, problem: Problem) -> Schedule:
        regions = problem.regions()
        sizes = [len(region) for region in regions]
        if sizes != [3, 3, 3]:
            found = ", ".join(str(size) for size in sizes)
            raise PolicyError(
                f"policy triangles does not apply: it needs three regions of three islands, not of {found}"
            )

        def time_ms(cliques: Round) -> tuple[float, float]:
            # Where delays differ by direction no partition may do without memory: unlimited memory decides then.
            return problem.round_time_ms(cliques, 0.0), problem.round_time_ms(cliques, math.inf)

        return Schedule((regions, min(_one_of_each(regions), key=time_ms)))


def _one_of_each(regions: tuple[tuple[str, ...], ...]) -> Iterator[Round]:
    first, second, third = regions
    for middle in permutations(second):
        for last in permutations(third):
            yield tuple(zip(first, middle, last, strict=True))
