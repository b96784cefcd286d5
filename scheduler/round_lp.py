"""The round LP: smallest round time T, with each sender's offset t_j and duration D_j, at any memory M.

    (1) t_j + d_ji + D_j ≤ T                              every receiver i of j
    (2) first byte of k − first byte of j ≤ (M/S)·D_j     at every receiver, ordered pairs of senders j, k
    (3) last byte of k − last byte of j ≤ (M/S)·D_k       the same pairs; (2) and (3) vanish when M ≥ S
    (4) Σ copies·σ/D_j ≤ 1                                everything shared
    (5) D_j ≥ what the access links allow

With one helper per receiver for (2) and one for (3) there are O(|C|²) rows. 1/D_j has a helper x_j of its own, held up
by tangents x_j ≥ 2/D₀ − D_j/D₀² that are added at the LP's point until nothing shared is over by more than 1e-7.
"""

from typing import Any

import highspy
import pulp

from scheduler import closed_form
from scheduler.errors import SolverError
from scheduler.exchange import Exchange
from scheduler.solution import Infeasible, RoundSolution, load_of
from scheduler.solver import Solver, found_optimum

# Stricter than what is promised (1e-7), so that the second solve and rounding have room.
_CONVERGED = 2e-8
_MAX_CUT_PASSES = 300
_FIRST_TANGENTS = (0.9, 1.0, 1.15, 1.4, 2.0, 4.0)


def solve(
    exchange: Exchange, *, equal_rates: bool = False, time_limit_s: float | None = None
) -> RoundSolution | Infeasible:
    """Solve one round. Among the optima, prefer longer durations: slow senders are gentle on the network.

    `equal_rates` gives all senders of the round one duration. Raises SolverError when the solver stops early, calls
    the problem unbounded, or the tangents do not converge: none of these is a statement about the schedule.
    """
    if not exchange.senders:
        return RoundSolution(0.0, {}, {})
    model = _Model(exchange, equal_rates)
    if not model.solve(time_limit_s):
        return _why(exchange)
    model.refine()
    model.lengthen_durations()
    model.refine()
    return model.solution()


def _why(exchange: Exchange) -> Infeasible:
    # Any memory above 0 is enough for some slow plan, so what stands in the way is a cycle of delays at M = 0.
    for clique in exchange.cliques:
        if len(clique) > 2 and closed_form.aligned_offsets_ms(clique, exchange.delay_ms) is None:
            return closed_form.misaligned(clique, exchange.delay_ms)
    raise SolverError("the round LP is infeasible without a reason in the delays: numbers too far apart for the solver")


class _Model:
    """The LP in PuLP, and the running HiGHS that keeps its basis between solves. Time unit: the longest σ."""

    def __init__(self, exchange: Exchange, equal_rates: bool) -> None:
        self.exchange = exchange
        self.unit_ms = max([*(s.sigma_ms for s in exchange.shared), *exchange.least_duration_ms.values()])
        self.problem = pulp.LpProblem("round", pulp.LpMinimize)
        self.period = self.problem.add_variable("T", lowBound=0)
        self.number = {sender: f"{k}" for k, sender in enumerate(exchange.senders)}
        self.offset = {j: self.problem.add_variable(f"t_{self.number[j]}", lowBound=0) for j in exchange.senders}
        self.duration, self.share = self._rates(equal_rates)
        self.problem += self.period
        self._add_ends()
        if not exchange.needs_no_alignment:
            for clique in exchange.cliques:
                self._add_memory(clique)
        self._add_capacity()

    def _rates(self, equal_rates: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        # Variables for D and for 1/D, by sender; with equal rates all senders share one of each.
        duration: dict[str, Any] = {}
        share: dict[str, Any] = {}
        for j in self.exchange.senders:
            k = "all" if equal_rates else self.number[j]
            if equal_rates and duration:
                duration[j], share[j] = next(iter(duration.values())), next(iter(share.values()))
            else:
                duration[j], share[j] = (
                    self.problem.add_variable(f"D_{k}", lowBound=0),
                    self.problem.add_variable(f"x_{k}", lowBound=0),
                )
        for j, least_ms in self.exchange.least_duration_ms.items():
            self.problem += duration[j] >= least_ms / self.unit_ms, f"access_{self.number[j]}"
        return duration, share

    def _first(self, j: str, i: str) -> Any:
        return self.offset[j] + self.exchange.delay_ms[j][i] / self.unit_ms

    def _add_ends(self) -> None:
        for j, delays in self.exchange.delay_ms.items():
            # Only the last receiver matters for T.
            i = max(delays, key=lambda receiver: delays[receiver])
            self.problem += self._first(j, i) + self.duration[j] <= self.period, f"end_{self.number[j]}"

    def _add_memory(self, clique: tuple[str, ...]) -> None:
        if len(clique) < 3:
            return
        share = self.exchange.memory_share
        for i in clique:
            number = self.number[i]
            latest_first = self.problem.add_variable(f"first_{number}", lowBound=0)
            earliest_last = self.problem.add_variable(f"last_{number}", lowBound=0)
            for j in clique:
                if j == i:
                    continue
                at = f"{self.number[j]}_{number}"
                first = self._first(j, i)
                last = first + self.duration[j]
                self.problem += latest_first >= first, f"first_{at}"
                self.problem += latest_first <= first + share * self.duration[j], f"ahead_{at}"
                self.problem += earliest_last <= last, f"last_{at}"
                self.problem += earliest_last >= last - share * self.duration[j], f"behind_{at}"

    def _add_capacity(self) -> None:
        for k, shared in enumerate(self.exchange.shared):
            work = shared.sigma_ms / self.unit_ms
            load = pulp.lpSum(count * work * self.share[j] for j, count in shared.copies.items())
            self.problem += load <= 1.0, f"shared_{k}"
        # Durations without any memory limit are the shortest that can be, and where tangents matter first.
        preceding = {j: max(delays.values()) for j, delays in self.exchange.delay_ms.items()}
        least_ms = closed_form.round_time_ms(preceding, self.exchange.least_duration_ms, self.exchange.shared)
        for k, (duration, x, j) in enumerate(self._distinct()):
            for m, factor in enumerate(_FIRST_TANGENTS):
                at = factor * (least_ms - preceding[j]) / self.unit_ms
                self.problem += x >= 2.0 / at - duration * (1.0 / at**2), f"tangent_{k}_{m}"

    def _distinct(self) -> list[tuple[Any, Any, str]]:
        seen: dict[str, tuple[Any, Any, str]] = {}
        for j in self.exchange.senders:
            seen.setdefault(self.duration[j].name, (self.duration[j], self.share[j], j))
        return list(seen.values())

    def solve(self, time_limit_s: float | None) -> bool:
        """First solve, through PuLP. True when optimal, False when infeasible."""
        self.problem.solve(Solver(time_limit_s))
        self.highs: Any = self.problem.solverModel
        return found_optimum(self.highs)

    def refine(self) -> None:
        """Add tangents and solve again until nothing shared is over its capacity."""
        for _ in range(_MAX_CUT_PASSES):
            values = self.highs.getSolution().col_value
            solution = self.solution()
            over = {
                j
                for shared in self.exchange.shared
                if load_of(shared.sigma_ms, shared.copies, solution) > 1.0 + _CONVERGED
                for j in shared.copies
            }
            if not over:
                return
            names = {self.duration[j].name for j in over}
            for duration, x, _sender in self._distinct():
                if duration.name in names:
                    at = values[duration.index]
                    self.highs.addRow(2.0 / at, highspy.kHighsInf, 2, [x.index, duration.index], [1.0, 1.0 / at**2])
            self._run("while tangents were added")
        raise SolverError(f"the tangents of the round LP did not converge in {_MAX_CUT_PASSES} passes")

    def lengthen_durations(self) -> None:
        """Keep T, with room for what the tangents left it low by, and make the sum of durations as large as can be."""
        best = self.highs.getSolution().col_value[self.period.index]
        self.highs.changeColBounds(self.period.index, 0.0, best * (1.0 + 2.0 * _CONVERGED))
        self.highs.changeColCost(self.period.index, 0.0)
        for duration, _x, _sender in self._distinct():
            self.highs.changeColCost(duration.index, -1.0)
        self._run("while durations were lengthened")

    def _run(self, when: str) -> None:
        self.highs.run()
        if not found_optimum(self.highs):
            raise SolverError(f"the round LP became infeasible {when}: numbers too far apart for the solver")

    def solution(self) -> RoundSolution:
        values = self.highs.getSolution().col_value
        offset = {j: values[v.index] * self.unit_ms for j, v in self.offset.items()}
        duration = {j: values[v.index] * self.unit_ms for j, v in self.duration.items()}
        ends = (offset[j] + delay + duration[j] for j, d in self.exchange.delay_ms.items() for delay in d.values())
        return RoundSolution(max(ends), offset, duration)
