"""`regional`: each region is a clique, every round; regions never exchange, so the whole never mixes."""

from scheduler.errors import PolicyError
from scheduler.policies.interface import Schedule
from scheduler.problem import Problem


class Regional:
    """Islands exchange inside their region only: short rounds, A = inf when there are several regions."""

    name = "regional"

    def schedule(self, problem: Problem) -> Schedule:
        cliques = tuple(region for region in problem.regions() if len(region) > 1)
        if not cliques:
            raise PolicyError("policy regional does not apply: no region has two islands")
        return Schedule((cliques,))
