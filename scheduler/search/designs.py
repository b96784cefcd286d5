"""Schedules known from combinatorics, over labels 0 … n−1: grids, affine spaces, Kirkman triples, one-factorisations.

A design says nothing about places; which island gets which label is decided elsewhere (`labels`). In all of them two
labels share at most one clique of the whole pass, so that every round brings together what has not met.
"""

from collections.abc import Iterator, Sequence
from itertools import product

LabelRound = tuple[tuple[int, ...], ...]
Design = tuple[LabelRound, ...]


def grid(sides: Sequence[int]) -> Design:
    """Mixed radix: labels are points of a grid with these sides, and the rounds are its axes in turn.

    After one pass everything is mixed. With equal sides m and k axes, A = kN/(N−1) − 1/(m−1).
    """
    points = list(product(*(range(side) for side in sides)))
    number = {point: k for k, point in enumerate(points)}
    rounds: list[LabelRound] = []
    for axis in reversed(range(len(sides))):
        lines: dict[tuple[int, ...], list[int]] = {}
        for point in points:
            lines.setdefault(point[:axis] + point[axis + 1 :], []).append(number[point])
        rounds.append(tuple(map(tuple, lines.values())))
    return tuple(rounds)


def affine(prime: int, dimensions: int) -> Design:
    """All parallel classes of lines of an affine space over a prime field: (p^k − 1)/(p − 1) rounds of cliques of p."""
    points = list(product(range(prime), repeat=dimensions))
    number = {point: k for k, point in enumerate(points)}
    rounds: list[LabelRound] = []
    for direction in points:
        leading = next((x for x in direction if x), 0)
        if leading != 1:  # each line's direction once, and not the zero vector
            continue
        seen: set[int] = set()
        lines: list[tuple[int, ...]] = []
        for point in points:
            if number[point] in seen:
                continue
            line = tuple(
                number[tuple((x + step * d) % prime for x, d in zip(point, direction, strict=True))]
                for step in range(prime)
            )
            seen.update(line)
            lines.append(line)
        rounds.append(tuple(lines))
    return tuple(rounds)


def one_factorisation(n: int) -> Design:
    """Every pair once: n − 1 matchings for even n (circle method: label 0 stays, the others move one seat a round)."""
    moving = list(range(1, n))
    rounds: list[LabelRound] = []
    for _ in moving:
        circle = [0, *moving]
        rounds.append(tuple((circle[k], circle[n - 1 - k]) for k in range(n // 2)))
        moving = moving[-1:] + moving[:-1]
    return tuple(rounds)


def kirkman(n: int) -> Design | None:
    """A Kirkman triple system: (n − 1)/2 rounds of triples in which every pair meets once. None where none is built in.

    Powers of 3 are affine spaces. Otherwise the two constructions of Ray-Chaudhuri and Wilson over a prime field
    q ≡ 1 (mod 6): on 3q points (21, 39, 57, …) and on 2q + 1 points (15, 27, 39, …).
    """
    dimensions = round_log(n, 3)
    if dimensions is not None and dimensions >= 2:
        return affine(3, dimensions)
    if n % 3 == 0 and _is_suitable(n // 3):
        return _kirkman_3q(n // 3)
    if n % 2 == 1 and _is_suitable((n - 1) // 2):
        return _kirkman_2q_plus_1((n - 1) // 2)
    return None


def _is_suitable(q: int) -> bool:
    return q % 6 == 1 and q > 6 and all(q % k for k in range(2, int(q**0.5) + 1))


def _primitive_root(q: int) -> int:
    for g in range(2, q):
        powers = {pow(g, k, q) for k in range(q - 1)}
        if len(powers) == q - 1:
            return g
    raise ValueError(f"{q} is not a prime above 2")


def _kirkman_3q(q: int) -> Design:
    # Points (x, j), x in the field and j in 0, 1, 2. Blocks A (one level) and T (across levels) from cosets of cubes.
    t, g = q // 6, _primitive_root(q)

    def point(x: int, level: int) -> int:
        return (x % q) + q * level

    def across(i: int, shift: int) -> tuple[int, ...]:
        return tuple(point(pow(g, i + 2 * t * level, q) + shift, level) for level in range(3))

    rounds: list[LabelRound] = []
    in_base = [i for i in range(6 * t) if (i // t) % 2 == 1]
    for shift in range(q):
        blocks = [tuple(point(shift, level) for level in range(3))]
        blocks += [
            tuple(point(pow(g, i + 2 * t * k, q) + shift, level) for k in range(3))
            for i in range(t)
            for level in range(3)
        ]
        blocks += [across(i, shift) for i in in_base]
        rounds.append(tuple(blocks))
    rounds += [tuple(across(i, shift) for shift in range(q)) for i in range(6 * t) if i not in in_base]
    return tuple(rounds)


def _kirkman_2q_plus_1(q: int) -> Design:
    # Points (x, 1), (x, 2) and one at infinity; m is chosen so that 2·g^m = g^t + 1.
    t, g = q // 6, _primitive_root(q)
    m = next(k for k in range(q - 1) if (2 * pow(g, k, q) - pow(g, t, q) - 1) % q == 0)
    infinity = 2 * q

    def point(exponent: int, level: int, shift: int) -> int:
        return (pow(g, exponent, q) + shift) % q + q * level

    rounds: list[LabelRound] = []
    for shift in range(q):
        blocks: list[tuple[int, ...]] = [(shift, q + shift, infinity)]
        for start in (0, 2 * t, 4 * t):
            blocks += [
                (point(i, 0, shift), point(i + t, 0, shift), point(i + m, 1, shift)) for i in range(start, start + t)
            ]
        blocks += [tuple(point(i + m + k * t, 1, shift) for k in (1, 3, 5)) for i in range(t)]
        rounds.append(tuple(blocks))
    return tuple(rounds)


def round_log(n: int, base: int) -> int | None:
    """k with base^k = n, if there is one."""
    k = 0
    while n > 1 and n % base == 0:
        n //= base
        k += 1
    return k if n == 1 else None


def factorisations(n: int, smallest: int = 2) -> Iterator[tuple[int, ...]]:
    """Ways to write n as a product of factors of at least `smallest`, in rising order; n itself included."""
    for factor in range(smallest, int(n**0.5) + 1):
        if n % factor == 0:
            for rest in factorisations(n // factor, factor):
                yield (factor, *rest)
    if n >= smallest:
        yield (n,)


def designs_for(n: int, sizes: Sequence[int], spare: int = 3) -> Iterator[Design]:
    """Designs on n labels, or on up to `spare` more (labels of n and above stand for nobody).

    Cliques lose their nobodies; a clique whose size is then not allowed is dropped, and its members are idle.
    """
    for points in range(n, n + spare + 1):
        for sides in factorisations(points):
            if len(sides) > 1 or points == n:
                yield from _fitted(grid(sides), n, sizes)
        triples = kirkman(points)
        if triples is not None:
            yield from _fitted(triples, n, sizes)
        if points % 2 == 0 and points <= n + 1:
            yield from _fitted(one_factorisation(points), n, sizes)


def _fitted(design: Design, n: int, sizes: Sequence[int]) -> Iterator[Design]:
    rounds = []
    for cliques in design:
        present = (tuple(label for label in clique if label < n) for clique in cliques)
        kept = tuple(clique for clique in present if len(clique) in sizes)
        if kept:
            rounds.append(kept)
    # A design that loses much to the sizes is no design any more.
    met = sum(len(clique) for cliques in rounds for clique in cliques)
    if rounds and met >= 0.6 * n * len(design):
        yield tuple(rounds)
