"""How solves end: four outcomes that are told apart; and nothing is printed on the way."""

import subprocess
import sys

import pulp
import pytest

from scheduler.errors import SolverError
from scheduler.solver import Solver, found_optimum


def small(sense: int = pulp.LpMinimize) -> tuple[pulp.LpProblem, pulp.LpVariable]:
    problem = pulp.LpProblem("small", sense)
    x = problem.add_variable("x", 1, None)
    problem += x
    return problem, x


def test_optimal() -> None:
    problem, x = small()
    problem.solve(Solver())
    assert found_optimum(problem.solverModel)
    assert x.varValue == 1


def test_infeasible() -> None:
    problem, x = small()
    problem += x <= 0.5
    problem.solve(Solver())
    assert not found_optimum(problem.solverModel)


def test_unbounded() -> None:
    problem, _ = small(pulp.LpMaximize)
    problem.solve(Solver())
    with pytest.raises(SolverError, match="unbounded"):
        found_optimum(problem.solverModel)


def test_stopped_early() -> None:
    problem = pulp.LpProblem("larger", pulp.LpMinimize)
    variables = [problem.add_variable(f"x{k}", 0) for k in range(30)]
    problem += pulp.lpSum(variables)
    for k in range(30):
        problem += pulp.lpSum((1 + (j * k) % 7) * x for j, x in enumerate(variables)) >= 10 + k
    solver = Solver()
    solver.settings |= {"simplex_iteration_limit": 1, "presolve": "off"}
    problem.solve(solver)
    with pytest.raises(SolverError, match="stopped before"):
        found_optimum(problem.solverModel)


def test_solving_prints_nothing() -> None:
    code = (
        "from scheduler.planner import plan; from testbed.topology.nine_city import nine_city; "
        "plan(nine_city(), 'triangles', memory_gb=0.1, payload_gb=1, trees='optimised')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == ""
    assert done.stderr == ""
