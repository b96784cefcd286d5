"""`all-to-all`: one clique of all islands, every round."""

from scheduler.policies.interface import Schedule
from scheduler.problem import Problem


class AllToAll:
    """Every island exchanges with every other: A = 1, at the price of the longest round."""

    name = "all-to-all"

    def schedule(self, problem: Problem) -> Schedule:
        return Schedule(((problem.islands,),))
