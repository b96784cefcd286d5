"""Optimised trees: the choice of one candidate tree per stream that makes a round shortest.

For a given T, stream j on a tree with lead P_j loads each link with σ/(T − P_j) of its capacity: numbers. Choosing
trees so that the fullest link is as empty as possible is then a small integer program. It is solved at the T of the
best choice so far, whose own smallest T is taken next; when the fullest link cannot be below its capacity any more, no
choice of candidates is shorter. At M = 0 the trees of a clique of three or more are chosen together, from the
combinations whose first bytes can coincide; P is then the clique's latest first byte.

A search that looks at thousands of rounds, and rounds with many streams, take the quick way: the same steps, but
instead of the program each choice in turn is exchanged for the one that leaves the fullest link emptiest, until
nothing changes.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pulp
from numpy.typing import NDArray

from scheduler import closed_form
from scheduler.errors import SolverError
from scheduler.exchange import Shared
from scheduler.policies.interface import Round
from scheduler.solution import Infeasible
from scheduler.solver import Solver, found_optimum
from scheduler.topology import LinkId, Topology
from scheduler.tree_candidates import TreeCandidates
from scheduler.trees import Tree

_COMBINATIONS = 120
_TREES_TOGETHER = 12
_SOLVES = 12
_TIME_LIMIT_S = 10.0
# The program is for rounds of so many streams; with more it takes too long.
_STREAMS = 12
_SWEEPS = 6
_POWER = 16
_WISHES = (0.65, 0.8, 1.0)
_STARTS = 4


@dataclass(frozen=True)
class _Choice:
    """Trees that are chosen together, and the lead P_j of each."""

    trees: tuple[Tree, ...]
    preceding_ms: tuple[float, ...]


class _Group:
    """Choices of which one is taken, with their numbers as arrays: choices × trees (× links)."""

    def __init__(self, choices: list[_Choice], incidence: NDArray[np.float64]) -> None:
        self.choices = choices
        self.preceding_ms = np.array([choice.preceding_ms for choice in choices])
        self.incidence_ms = incidence

    def loads(self, time_ms: float) -> NDArray[np.float64]:
        """Shares of every link's capacity at this T, by choice; far too much where a choice would end after T."""
        fits = np.all(self.preceding_ms < time_ms * (1.0 - 1e-9), axis=1)
        spare = np.where(fits[:, None], time_ms - self.preceding_ms, 1e-3)
        loads: NDArray[np.float64] = np.einsum("ctl,ct->cl", self.incidence_ms, 1.0 / spare)
        return loads


class TreePacking:
    """Optimised trees in one topology at one payload, with or without memory."""

    def __init__(
        self, topology: Topology, candidates: TreeCandidates, sigma_ms: Mapping[LinkId, float], *, unicast: bool
    ) -> None:
        self._topology = topology
        self._candidates = candidates
        self._sigma_ms = sigma_ms
        self._unicast = unicast
        self._column = {link: k for k, link in enumerate(sigma_ms)}
        self._groups: dict[tuple[tuple[str, ...], bool], list[_Group]] = {}

    def trees(self, cliques: Round, *, aligned: bool, quick: bool = False) -> dict[str, Tree] | Infeasible:
        """A tree for every sender. `aligned` says that there is no memory (M = 0), else that there is enough."""
        groups: list[_Group] = []
        for clique in cliques:
            if len(clique) > 1:
                key = (clique, aligned and len(clique) > 2)
                if key not in self._groups:
                    self._groups[key] = self._work_out(clique, together=key[1])
                if not self._groups[key]:
                    return Infeasible(f"clique {' '.join(clique)} cannot do without aggregator memory on any trees")
                groups += self._groups[key]
        chosen = [group.choices[0] for group in groups]
        time_ms = self._time_ms(chosen)
        generator = random.Random(0)
        starts = [chosen, *([generator.choice(group.choices) for group in groups] for _ in range(_STARTS))]
        # Wishing for a much smaller T leads past choices that are only a little better.
        floor_ms = max(min(self._alone_ms(choice) for choice in group.choices) for group in groups)
        for start, wish in product(starts, _WISHES):
            if time_ms <= floor_ms * (1.0 + 1e-9):
                break
            other, other_ms = start, wish * time_ms
            for _ in range(_SOLVES):
                other = self._exchanged(groups, other, other_ms)
                before_ms, other_ms = other_ms, self._time_ms(other)
                if other_ms < time_ms * (1.0 - 1e-9):
                    chosen, time_ms = other, other_ms
                elif other_ms >= before_ms:
                    break
        streams = sum(len(choice.trees) for choice in chosen)
        for _ in range(0 if quick or streams > _STREAMS else _SOLVES):
            emptiest = self._emptiest(groups, time_ms)
            emptiest_ms = time_ms if emptiest is None else self._time_ms(emptiest)
            if emptiest is None or emptiest_ms >= time_ms * (1.0 - 1e-9):
                break
            chosen, time_ms = emptiest, emptiest_ms
        return {tree.source: tree for choice in chosen for tree in choice.trees}

    def _alone_ms(self, choice: _Choice) -> float:
        works = (max(n * self._sigma_ms[link] for link, n in self._copies(tree).items()) for tree in choice.trees)
        return max(lead + work for lead, work in zip(choice.preceding_ms, works, strict=True))

    def _work_out(self, clique: tuple[str, ...], *, together: bool) -> list[_Group]:
        """The groups of one clique; none if it cannot be."""
        choices = self._together(clique) if together else self._apart(clique)
        return [_Group(group, np.stack([self._incidence(choice) for choice in group])) for group in choices if group]

    def _apart(self, clique: tuple[str, ...]) -> list[list[_Choice]]:
        groups = []
        for sender in clique:
            receivers = tuple(island for island in clique if island != sender)
            trees = self._candidates.trees(sender, receivers)
            groups.append([_Choice((tree,), (max(self._delays_ms(tree).values()),)) for tree in trees])
        return groups

    @cache  # noqa: B019 - lives as long as the packing does
    def _delays_ms(self, tree: Tree) -> dict[str, float]:
        return tree.delays_ms(self._topology)

    def _together(self, clique: tuple[str, ...]) -> list[list[_Choice]]:
        per_sender = [[choice.trees[0] for choice in group][:_TREES_TOGETHER] for group in self._apart(clique)]
        found: list[_Choice] = []
        # Beyond triangles, only the shortest-delay trees are tried together: combinations grow too fast.
        for trees in product(*per_sender) if len(clique) == 3 else [tuple(group[0] for group in per_sender)]:
            delay_ms = {tree.source: self._delays_ms(tree) for tree in trees}
            offset_ms = closed_form.aligned_offsets_ms(clique, delay_ms)
            if offset_ms is not None:
                latest = max(offset_ms[j] + delay for j in clique for delay in delay_ms[j].values())
                found.append(_Choice(trees, (latest,) * len(clique)))
        found.sort(key=lambda choice: (choice.preceding_ms[0], sum(len(tree.links) for tree in choice.trees)))
        return [found[:_COMBINATIONS]]

    def _copies(self, tree: Tree) -> dict[LinkId, int]:
        return tree.copies() if self._unicast else dict.fromkeys(tree.links, 1)

    def _time_ms(self, chosen: Sequence[_Choice]) -> float:
        preceding: dict[str, float] = {}
        loads: dict[LinkId, dict[str, int]] = {}
        for choice in chosen:
            for tree, lead in zip(choice.trees, choice.preceding_ms, strict=True):
                preceding[tree.source] = lead
                for link, copies in self._copies(tree).items():
                    loads.setdefault(link, {})[tree.source] = copies
        shared = [Shared("link", self._sigma_ms[link], users) for link, users in loads.items()]
        return closed_form.round_time_ms(preceding, dict.fromkeys(preceding, 0.0), shared)

    def _exchanged(self, groups: Sequence[_Group], chosen: Sequence[_Choice], time_ms: float) -> list[_Choice]:
        """Exchange one choice at a time while the fullest links get emptier, at this T."""
        loads = [group.loads(time_ms) for group in groups]
        picked = [group.choices.index(choice) for group, choice in zip(groups, chosen, strict=True)]
        total = np.sum([load[k] for load, k in zip(loads, picked, strict=True)], axis=0)
        for _ in range(_SWEEPS):
            before = list(picked)
            for g, load in enumerate(loads):
                others = total - load[picked[g]]
                # A high power of the loads stands for their maximum, and still tells equal maxima apart.
                fullness = ((others + load) ** _POWER).sum(axis=1)
                best = int(fullness.argmin())
                if fullness[best] < fullness[picked[g]] * (1.0 - 1e-9):
                    picked[g] = best
                total = others + load[picked[g]]
            if picked == before:
                break
        return [group.choices[k] for group, k in zip(groups, picked, strict=True)]

    def _incidence(self, choice: _Choice) -> NDArray[np.float64]:
        rows = np.zeros((len(choice.trees), len(self._sigma_ms)))
        for row, tree in zip(rows, choice.trees, strict=True):
            for link, copies in self._copies(tree).items():
                row[self._column[link]] = copies * self._sigma_ms[link]
        return rows

    def _emptiest(self, groups: Sequence[_Group], time_ms: float) -> list[_Choice] | None:
        """The choice with the emptiest fullest link at this T, or None if no choice leaves room."""
        problem = pulp.LpProblem("trees", pulp.LpMinimize)
        fullest = problem.add_variable("fullest", 0)
        problem += fullest
        on_link: dict[LinkId, list[tuple[pulp.LpVariable, float]]] = {}
        picked: list[list[tuple[pulp.LpVariable, _Choice]]] = []
        for g, group in enumerate(groups):
            options = []
            for c, choice in enumerate(group.choices):
                if max(choice.preceding_ms) >= time_ms * (1.0 - 1e-9):
                    continue
                variable = problem.add_variable(f"pick_{g}_{c}", 0, 1, pulp.LpInteger)
                options.append((variable, choice))
                load: dict[LinkId, float] = {}
                for tree, lead in zip(choice.trees, choice.preceding_ms, strict=True):
                    for link, copies in self._copies(tree).items():
                        load[link] = load.get(link, 0.0) + copies * self._sigma_ms[link] / (time_ms - lead)
                for link, share in load.items():
                    on_link.setdefault(link, []).append((variable, share))
            problem += pulp.lpSum(variable for variable, _ in options) == 1, f"one_of_{g}"
            picked.append(options)
        for k, terms in enumerate(on_link.values()):
            problem += pulp.lpSum(share * variable for variable, share in terms) <= fullest, f"link_{k}"
        problem.solve(Solver(time_limit_s=_TIME_LIMIT_S, relative_gap=1e-4))
        try:
            if not found_optimum(problem.solverModel):
                return None
        except SolverError:
            return None  # stopped early: the trees so far are valid, only perhaps not the best
        if fullest.varValue >= 1.0 - 1e-6:
            return None
        return [next(choice for variable, choice in options if variable.varValue > 0.5) for options in picked]
