"""`pairs`: matchings, round-robin by the circle method, so that every pair meets once in a pass.

One island stays put and the others move one seat per round; with an odd number one seat is empty, and who would meet
it is idle. The order of the rounds is the circle's: A depends strongly on it (4.83 for nine islands, and as little as
3.2 in other orders). Which island sits where changes T but not A; seats are chosen by swaps, from several seeded
starts, for the smallest longest round. `pairs-line` is the odd-even variant.
"""

import math
import random
from collections.abc import Sequence
from itertools import combinations

from scheduler.policies.interface import Round, Schedule
from scheduler.problem import Problem
from scheduler.search.designs import one_factorisation
from scheduler.search.labels import near_order

_STARTS = 40
# Seatings to score, per island cubed: scoring one takes time by the square or more.
_EVALUATIONS = 2_500_000


class Pairs:
    """Every pair of islands meets once per pass."""

    name = "pairs"

    def schedule(self, problem: Problem) -> Schedule:
        return Schedule(circle_rounds(_best_seats(problem)))


class PairsLine:
    """Islands in a line by nearness; odd and even neighbours meet in turn. Short rounds, but updates walk slowly."""

    name = "pairs-line"

    def schedule(self, problem: Problem) -> Schedule:
        line = near_order(problem)
        rounds = (tuple(zip(line[start::2], line[start + 1 :: 2], strict=False)) for start in (0, 1))
        return Schedule(tuple(matching for matching in rounds if matching))


def circle_rounds(seats: Sequence[str]) -> tuple[Round, ...]:
    """The circle method for islands in this seating. The first stays put; an empty seat comes last if needed."""
    n = len(seats)
    return tuple(
        tuple((seats[a], seats[b]) for a, b in matching if max(a, b) < n) for matching in one_factorisation(n + n % 2)
    )


def _best_seats(problem: Problem) -> list[str]:
    # The order of a matching's pairs does not matter, and neither does the memory: a receiver has one stream.
    times: dict[frozenset[frozenset[str]], float] = {}

    def time_ms(cliques: Round) -> float:
        key = frozenset(map(frozenset, cliques))
        if key not in times:
            times[key] = problem.round_time_ms(cliques, math.inf)
        return times[key]

    def cost(seats: Sequence[str]) -> tuple[float, float]:
        # The sum breaks ties between seatings with the same longest round, and leads towards shorter ones.
        by_round = [time_ms(cliques) for cliques in circle_rounds(seats)]
        return max(by_round), sum(by_round)

    generator = random.Random(problem.seed)
    evaluations = _EVALUATIONS // len(problem.islands) ** 3
    best = list(problem.islands)
    best_cost = cost(best)
    for start in range(_STARTS):
        seats = list(problem.islands)
        if start:
            if evaluations <= 0:
                break
            generator.shuffle(seats)
        seats_cost = cost(seats)
        evaluations -= 1
        improved = True
        while improved:
            improved = False
            for a, b in combinations(range(len(seats)), 2):
                if evaluations <= 0:
                    break
                seats[a], seats[b] = seats[b], seats[a]
                evaluations -= 1
                swapped = cost(seats)
                if swapped < seats_cost:
                    seats_cost, improved = swapped, True
                else:
                    seats[a], seats[b] = seats[b], seats[a]
        if seats_cost < best_cost:
            best, best_cost = list(seats), seats_cost
    return best
