"""HiGHS behind PuLP: quiet, and honest about how a solve ended.

PuLP writes the models and HiGHS solves them, from the package `highspy`: a plain dependency with wheels for every
platform, accurate to 1e-9, which keeps its basis while rows are added, so that every solve after the first is cheap.
(PuLP's own bundled solver is missing from some of its releases, and starts a process for every solve.)
"""

from typing import Any

import highspy
import pulp

from scheduler.errors import SolverError

_ACCURACY = 1e-9


class _QuietHighs(highspy.Highs):  # type: ignore[misc]
    """HiGHS whose constructor does not greet: it would do so on standard output, where only results belong."""

    def enableCallbacks(self) -> None:  # called by the constructor of the base class
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()


class Solver(pulp.HiGHS):  # type: ignore[misc]
    """PuLP's HiGHS, single-threaded and without output. After a solve `problem.solverModel` is the running solver."""

    def __init__(self, time_limit_s: float | None = None, relative_gap: float | None = None) -> None:
        super().__init__(msg=False)
        self.settings: dict[str, Any] = {
            "output_flag": False,
            "threads": 1,
            "primal_feasibility_tolerance": _ACCURACY,
            "dual_feasibility_tolerance": _ACCURACY,
        }
        if time_limit_s is not None:
            self.settings["time_limit"] = time_limit_s
        if relative_gap is not None:
            self.settings["mip_rel_gap"] = relative_gap

    def createAndConfigureSolver(self, lp: Any) -> None:
        lp.solverModel = _QuietHighs()
        for name, value in self.settings.items():
            lp.solverModel.setOptionValue(name, value)


def found_optimum(highs: Any) -> bool:
    """True if the last solve ended with the optimum, False if there is no solution at all.

    HiGHS is asked itself: PuLP reports a solve that ran into its time limit as optimal. Raises SolverError if the
    solve was stopped early, is unbounded, or failed: three different messages.
    """
    status = highs.getModelStatus()
    outcomes = highspy.HighsModelStatus
    if status == outcomes.kOptimal:
        return True
    if status == outcomes.kInfeasible:
        return False
    if status in (outcomes.kTimeLimit, outcomes.kIterationLimit, outcomes.kInterrupt):
        raise SolverError("the solver was stopped before it found the optimum: allow it more time")
    if status in (outcomes.kUnbounded, outcomes.kUnboundedOrInfeasible):
        raise SolverError(
            "the solver calls the problem unbounded: every plan has a shortest round, so this is a defect"
        )
    raise SolverError(f"the solver ended without an answer: {highs.modelStatusToString(status)}")
