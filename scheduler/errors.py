"""The errors of the scheduler. Every message is one line that names what is wrong and the way out."""


class SchedulerError(ValueError):
    """Bad input to the scheduler."""


class TopologyError(SchedulerError):
    """A topology that cannot be: unknown ends, impossible numbers, islands that cannot reach each other."""


class PolicyError(SchedulerError):
    """A policy that does not exist, does not apply to this topology, or returned something that is no schedule."""


class PlanError(SchedulerError):
    """A payload, memory or option that no plan can be made for."""


class SolverError(RuntimeError):
    """The solver ended without an answer that holds: stopped early, unbounded, or wrong beyond rounding."""
