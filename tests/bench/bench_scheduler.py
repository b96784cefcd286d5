"""How long planning takes, and what the search finds. Run as a script; needs no root, and an idle machine.

    python tests/bench/bench_scheduler.py [solve] [large] [search]

`solve`: time of one round by number of islands: the scheduler's own way, its round LP, and a plain model of rows (1)
to (5) in PuLP with one row per receiver and ordered pair of senders, O(|C|³). `large`: triangle designs on 27 and 81
islands. `search`: what is found on nine cities, in how long, and the bound. Exit 1 if a promise does not hold.
"""

import math
import random
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import pulp

from scheduler import round_lp
from scheduler.exchange import Exchange
from scheduler.planner import plan
from scheduler.policies.search import Search
from scheduler.problem import Problem
from scheduler.solution import Infeasible
from scheduler.solver import Solver, found_optimum
from scheduler.topology import Island, Topology, both_ways
from testbed.topology.nine_city import nine_city

PAYLOAD_GB = 1.692


def ring(n: int) -> Topology:
    """Regions of three, joined by a ring with chords."""
    generator = random.Random(n)
    ends = [(3 * r + a, 3 * r + b) for r in range(n // 3) for a, b in ((0, 1), (1, 2), (0, 2))]
    ends += [(3 * r + step % 3, (3 * (r + step) + (step + 1) % 3) % n) for r in range(n // 3) for step in (1, 2, 5)]
    pairs = {frozenset(pair): pair for pair in ends if pair[0] != pair[1]}
    links = [
        link
        for a, b in pairs.values()
        for link in both_ways(f"i{a}", f"i{b}", round(generator.uniform(2, 60), 2), 100.0)
    ]
    islands = tuple(Island(f"i{k}", f"region{k // 3}") for k in range(n))
    return Topology(f"ring-{n}", islands, (), tuple(links))


def plain_model(exchange: Exchange) -> float:
    """Rows (1) to (5) written out, one per receiver and ordered pair of senders; tangents until 1e-7; T in ms."""
    unit = max(shared.sigma_ms for shared in exchange.shared)
    problem = pulp.LpProblem("plain", pulp.LpMinimize)
    period = problem.add_variable("T", 0)
    number = {j: k for k, j in enumerate(exchange.senders)}
    offset = {j: problem.add_variable(f"t_{k}", 0) for j, k in number.items()}
    duration = {j: problem.add_variable(f"D_{k}", exchange.least_duration_ms[j] / unit) for j, k in number.items()}
    problem += period
    for j, delays in exchange.delay_ms.items():
        for delay in delays.values():
            problem += offset[j] + delay / unit + duration[j] <= period
    if not exchange.needs_no_alignment:
        share = exchange.memory_share
        for clique in exchange.cliques:
            for i in clique:
                for j in clique:
                    for k in clique:
                        if len({i, j, k}) == 3:
                            first = {s: offset[s] + exchange.delay_ms[s][i] / unit for s in (j, k)}
                            problem += first[k] - first[j] <= share * duration[j]
                            problem += first[k] + duration[k] - first[j] - duration[j] <= share * duration[k]
    points = {j: [1.0, 2.0, 4.0, 8.0] for j in exchange.senders}
    for _ in range(100):
        for shared in exchange.shared:
            for tangent in range(len(next(iter(points.values())))):
                load = []
                for j, copies in shared.copies.items():
                    at = points[j][tangent]
                    load.append(copies * shared.sigma_ms / unit * (2.0 / at - duration[j] * (1.0 / at**2)))
                problem += pulp.lpSum(load) <= 1.0
        problem.solve(Solver())
        if not found_optimum(problem.solverModel):
            return math.inf
        now = {j: duration[j].varValue for j in exchange.senders}
        over = max(
            sum(copies * shared.sigma_ms / unit / now[j] for j, copies in shared.copies.items())
            for shared in exchange.shared
        )
        if over <= 1.0 + 1e-7:
            return float(period.varValue * unit)
        points = {j: [now[j]] for j in exchange.senders}
    raise AssertionError("the plain model did not converge")


def timed(action: Callable[..., Any], *arguments: object, **options: object) -> tuple[Any, float]:
    started = time.perf_counter()
    answer = action(*arguments, **options)
    return answer, time.perf_counter() - started


def bench_solve() -> bool:
    print("one all-to-all round at 0.4 GB, seconds")
    print(f"{'islands':>8} {'round LP':>10} {'plain O(n^3)':>13} {'ratio':>7}   {'T ms':>9}")
    for n in (3, 6, 9, 12, 18, 27):
        where = nine_city() if n == 9 else ring(n)
        problem = Problem(where, memory_gb=0.4, payload_gb=PAYLOAD_GB)
        exchange = problem.exchange((where.island_ids,), 0.4)
        answer, own_s = timed(round_lp.solve, exchange)
        assert not isinstance(answer, Infeasible)
        plain_ms, plain_s = timed(plain_model, exchange)
        assert abs(plain_ms - answer.time_ms) <= 1e-6 * plain_ms
        print(f"{n:>8} {own_s:>10.3f} {plain_s:>13.3f} {plain_s / own_s:>7.1f}   {plain_ms:>9.1f}", flush=True)
    print("\nwhole plans, seconds")
    print(f"{'islands':>8} {'policy':>11} {'0 GB':>7} {'0.1 GB':>7} {'2 GB':>7}")
    for n in (9, 27, 81):
        for policy in ("all-to-all", "triangles", "pairs", "regional"):
            if (n, policy) == (81, "pairs"):
                continue  # minutes: its pass has 81 rounds, and it takes a hundred passes to mix
            where = nine_city() if n == 9 else ring(n)
            took = [timed(plan, where, policy, memory_gb=m, payload_gb=PAYLOAD_GB)[1] for m in (0.0, 0.1, 2.0)]
            print(f"{n:>8} {policy:>11} " + " ".join(f"{seconds:>7.2f}" for seconds in took), flush=True)
    return True


def bench_large() -> bool:
    good = True
    for n, limit_s in ((27, 10.0), (81, 120.0)):
        for memory_gb in (0.0, 0.1, 2.0):
            for name, policy in (("triangles", "triangles"), ("search 3", Search([3], limit_s, time.monotonic))):
                planned, took_s = timed(plan, ring(n), policy, memory_gb=memory_gb, payload_gb=PAYLOAD_GB)
                peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                kept = took_s <= limit_s and peak_mb < 2048 and planned.feasible
                good &= kept
                print(
                    f"{n} islands, {name}, {memory_gb:g} GB: T {planned.round_time_ms:.1f} ms, "
                    f"A {planned.mean_divergence_lifetime_rounds:.3f}, objective {planned.objective_ms:.1f} ms; "
                    f"{took_s:.1f} s, {peak_mb:.0f} MB{'' if kept else '  <-- too much'}",
                    flush=True,
                )
    return good


def bench_search() -> bool:
    good = True
    asked = [
        (None, 0.0, "shortest", 808.5),
        (None, 32.0, "shortest", 808.5),
        ([3], 0.0, "shortest", 1041.5),
        ([3], 32.0, "shortest", 864.5),
        (None, 0.0, "optimised", 808.5),
        (None, 32.0, "optimised", 808.5),
        ([3], 0.0, "optimised", 1041.5),
        ([3], 32.0, "optimised", 864.5),
    ]
    for sizes, memory_gb, trees, at_most in asked:
        planned, took_s = timed(
            plan,
            nine_city(),
            Search(sizes, 45.0, time.monotonic),
            memory_gb=memory_gb,
            payload_gb=PAYLOAD_GB,
            trees=trees,
        )
        kept = planned.objective_ms <= at_most and took_s <= 50.0
        good &= kept
        print(
            f"search{'' if sizes is None else ' of triples'}, {trees} trees, {memory_gb:g} GB: "
            f"objective {planned.objective_ms:.2f} ms (T {planned.round_time_ms:.2f}, "
            f"A {planned.mean_divergence_lifetime_rounds:.4f}, {len(planned.rounds)} rounds), "
            f"bound {planned.lower_bound_ms:.2f}; {took_s:.1f} s{'' if kept else '  <-- promised ' + str(at_most)}",
            flush=True,
        )
    return good


BENCHES = {"solve": bench_solve, "large": bench_large, "search": bench_search}

if __name__ == "__main__":
    wanted = sys.argv[1:] or list(BENCHES)
    outcomes = [BENCHES[name]() for name in wanted]
    sys.exit(0 if all(outcomes) else 1)
