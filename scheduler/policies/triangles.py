"""`triangles`: a round of triangles inside the regions, then rounds of triangles across them.

Nine islands in three regions of three: the second round is the partition into cliques of one island per region that
has the smallest round time without aggregator memory, and it stays the same with memory: a sweep over memory compares
one schedule with itself. (With memory other partitions can be a little shorter; `search` finds those.)

More powers of three (27, 81, …): the axes of a grid with sides of three. The first axis stays inside the regions, which
must hold whole triangles; places inside the regions are chosen by swaps, again without memory.
"""

import math
import random
from collections.abc import Iterator
from itertools import permutations

from scheduler.errors import PolicyError
from scheduler.policies.interface import Round, Schedule
from scheduler.problem import Problem
from scheduler.search.designs import grid, round_log
from scheduler.search.labels import LabelSearch, near_order, rounds_of
from scheduler.search.round_times import RoundTimes

_SWAPS = 1_000_000


class Triangles:
    """A = 7/4 for nine islands, 34/13 for 27."""

    name = "triangles"

    def schedule(self, problem: Problem) -> Schedule:
        regions = problem.regions()
        sizes = [len(region) for region in regions]
        if sizes == [3, 3, 3]:
            return Schedule((regions, _best_across(problem, regions)))
        axes = round_log(len(problem.islands), 3)
        if axes is None or axes < 3 or any(size % 3 for size in sizes):
            found = ", ".join(str(size) for size in sizes)
            raise PolicyError(
                "policy triangles does not apply: it needs nine islands in three regions of three, or 27, 81, … in "
                f"regions of whole triangles; here the regions have {found}"
            )
        return Schedule(_grid(problem, regions, axes))


def _best_across(problem: Problem, regions: tuple[tuple[str, ...], ...]) -> Round:
    def time_ms(cliques: Round) -> tuple[float, float]:
        # Where delays differ by direction no partition may do without memory: unlimited memory decides then.
        return problem.round_time_ms(cliques, 0.0), problem.round_time_ms(cliques, math.inf)

    return min(_one_of_each(regions), key=time_ms)


def _one_of_each(regions: tuple[tuple[str, ...], ...]) -> Iterator[Round]:
    first, second, third = regions
    for middle in permutations(second):
        for last in permutations(third):
            yield tuple(zip(first, middle, last, strict=True))


def _grid(problem: Problem, regions: tuple[tuple[str, ...], ...], axes: int) -> tuple[Round, ...]:
    near = {island: place for place, island in enumerate(near_order(problem))}
    order = [island for region in regions for island in sorted(region, key=near.__getitem__)]
    design = grid((3,) * axes)
    times = RoundTimes(problem, 0.0)
    if not math.isfinite(float(times(rounds_of(design, order)).max())):
        times = RoundTimes(problem, math.inf)
    labels = LabelSearch(times, design, order, regions)
    labels.swap(_SWAPS // len(order) ** 2, random.Random(problem.seed), lambda: False)
    return tuple(rounds_of(design, labels.islands))
