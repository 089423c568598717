"""Problems that count combinations: points, totals, payments, assignments, subsets, paths."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter

from trajgym.envs.code_problem import Draw, Problem, kinds_of, listed

__all__ = ["KINDS"]

_COINS = (1, 2, 3, 4, 5, 7, 8, 10, 11, 12, 15, 20, 25, 30, 50)
_FEWEST = 30  # smaller counts are too easy to guess


def lattice_points(draw: Draw) -> Problem:
    """Count the points of an ellipse; the answer measures it column by column."""
    a, b = sorted(draw.wholes(2, 2, 9))
    limit = draw.whole(500, 6_000)
    reach = math.isqrt(limit // a)
    count = sum(2 * math.isqrt((limit - a * x * x) // b) + 1 for x in range(-reach, reach + 1))
    question = draw.pick(
        (
            f"How many pairs (x, y) of integers, negative ones and zero allowed, satisfy {a}*x^2 + {b}*y^2 <= {limit}?",
            f"How many points with integer coordinates lie inside or on the curve {a}*x^2 + {b}*y^2 = {limit}?",
        )
    )
    program = f"""
        span = range(-{limit}, {limit} + 1)
        xs = [x for x in span if {a} * x * x <= {limit}]
        ys = [y for y in span if {b} * y * y <= {limit}]
        sum(1 for x in xs for y in ys if {a} * x * x + {b} * y * y <= {limit})
    """
    return Problem(question, count, (program,))


def dice_totals(draw: Draw) -> Problem:
    """Count the rolls with one total; the answer adds die after die."""
    dice = sorted(draw.wholes(5, 3, 11))
    middle = (sum(dice) + len(dice)) // 2
    total = draw.whole(middle - middle // 3, middle + middle // 3)
    ways = Counter({0: 1})
    for sides in dice:
        longer: Counter[int] = Counter()
        for so_far, count in ways.items():
            for face in range(1, sides + 1):
                longer[so_far + face] += count
        ways = longer
    question = draw.pick(
        (
            f"{len(dice)} dice of different colours have {listed(dice)} sides; the sides of each die are numbered from "
            f"1 up to its number of sides. In how many of all possible outcomes is the total rolled exactly {total}? "
            "(Outcomes differ when at least one die shows another number.)",
            f"How many tuples of {len(dice)} whole numbers have the sum {total}, if every entry is at least 1 and the "
            f"entries are, in this order, at most {listed(dice)}?",
        )
    )
    program = f"""
        from itertools import product

        dice = {dice}
        sum(1 for roll in product(*(range(1, sides + 1) for sides in dice)) if sum(roll) == {total})
    """
    return Problem(question, ways[total], (program,))


def coin_ways(draw: Draw) -> Problem | None:
    """Count the ways to pay; the answer goes from the largest coin down."""
    coins = sorted(draw.some(_COINS, draw.whole(4, 5)))
    amount = draw.whole(80, 300)

    @functools.cache
    def ways(rest: int, kinds: int) -> int:
        if kinds == 1:
            return int(rest % coins[0] == 0)
        return sum(ways(left, kinds - 1) for left in range(rest, -1, -coins[kinds - 1]))

    count = ways(amount, len(coins))
    if count < _FEWEST:
        return None
    question = draw.pick(
        (
            f"In how many ways can exactly {amount} cents be paid with coins of {listed(coins)} cents, each available "
            "without limit? Not every coin has to be used, and the order of the coins does not matter.",
            f"A shop sells screws in bags of {listed(coins)} pieces. In how many different ways can {draw.name()} buy "
            f"exactly {amount} screws? Only how many bags of each size are bought matters, and any number may be 0.",
        )
    )
    program = f"""
        ways = [1] + [0] * {amount}
        for coin in {coins}:
            for amount in range(coin, {amount} + 1):
                ways[amount] += ways[amount - coin]
        ways[{amount}]
    """
    return Problem(question, count, (program,))


def assignments(draw: Draw) -> Problem | None:
    """Count the assignments that respect refusals; the answer goes through the sets of jobs that are taken."""
    n = draw.whole(6, 7)
    refused = [sorted(draw.some(range(1, n + 1), draw.whole(1, 3))) for _ in range(n)]
    ways = Counter({0: 1})  # by set of jobs taken, as bits
    for jobs in refused:
        longer: Counter[int] = Counter()
        for taken, count in ways.items():
            for job in range(1, n + 1):
                if job not in jobs and not taken >> job & 1:
                    longer[taken | 1 << job] += count
        ways = longer
    count = ways.total()
    if count < _FEWEST:
        return None
    people = draw.names(n)
    refusals = "; ".join(f"{name}: {', '.join(map(str, jobs))}" for name, jobs in zip(people, refused, strict=True))
    question = draw.pick(
        (
            f"{n} people share {n} jobs, numbered 1 to {n}: everyone does exactly one job, and every job is done. Each "
            f"person refuses some jobs ({refusals}). In how many ways can the jobs be assigned?",
            f"Seats 1 to {n} in a row are to be filled with {n} people, one on each seat. Each of them must not "
            f"take certain seats ({refusals}). How many seating orders are possible?",
        )
    )
    program = f"""
        from itertools import permutations

        refused = {refused}
        people = range({n})
        sum(1 for jobs in permutations(range(1, {n} + 1)) if all(jobs[p] not in refused[p] for p in people))
    """
    return Problem(question, count, (program,))


def subset_sums(draw: Draw) -> Problem | None:
    """Count the subsets with one sum; the answer adds number after number."""
    numbers = sorted(draw.some(range(3, 50), draw.whole(13, 15)))
    target = sum(numbers) * draw.whole(25, 60) // 100
    ways = [1] + [0] * target
    for number in numbers:
        ways = [count + (ways[i - number] if i >= number else 0) for i, count in enumerate(ways)]
    if ways[target] < _FEWEST // 2:
        return None
    shown = listed(draw.some(numbers, len(numbers)))
    question = draw.pick(
        (
            f"How many subsets of the {len(numbers)} numbers {shown} have the sum {target}?",
            f"Weights of {shown} grams are available, one of each. In how many ways can some of them be chosen so that "
            f"they weigh exactly {target} grams together?",
        )
    )
    program = f"""
        from itertools import combinations

        numbers = {numbers}
        count = 0
        for size in range(len(numbers) + 1):
            for subset in combinations(numbers, size):
                if sum(subset) == {target}:
                    count += 1
        count
    """
    return Problem(question, ways[target], (program,))


def blocked_paths(draw: Draw) -> Problem | None:
    """Count the paths around closed crossings; the answer sorts them out by the first closed crossing they meet."""
    width, height = draw.wholes(2, 6, 12)
    inner = [p for p in itertools.product(range(width + 1), range(height + 1)) if p not in ((0, 0), (width, height))]
    closed = sorted(draw.some(inner, draw.whole(3, 5)))
    free: dict[tuple[int, int], int] = {}  # paths to a point that meet no closed crossing before it
    for x, y in [*closed, (width, height)]:
        met = [(p, q) for p, q in free if p <= x and q <= y]
        free[x, y] = math.comb(x + y, x) - sum(free[p, q] * math.comb(x - p + y - q, x - p) for p, q in met)
    count = free[width, height]
    if count < _FEWEST:
        return None
    question = draw.pick(
        (
            f"A path on the integer grid leads from (0, 0) to ({width}, {height}); each step adds 1 to one of the two "
            f"coordinates. How many such paths avoid the points {listed(closed)}?",
            f"Streets form a grid. {draw.name()} walks from the crossing (0, 0) to the crossing ({width}, {height}), "
            "one block east (first coordinate + 1) or one block north (second coordinate + 1) at a time. The crossings "
            f"{listed(closed)} are closed. How many routes are there?",
        )
    )
    program = f"""
        closed = {closed}
        paths = {{(0, 0): 1}}
        for x in range({width} + 1):
            for y in range({height} + 1):
                if (x, y) in closed:
                    paths[x, y] = 0
                elif (x, y) != (0, 0):
                    paths[x, y] = paths.get((x - 1, y), 0) + paths.get((x, y - 1), 0)
        paths[{width}, {height}]
    """
    return Problem(question, count, (program,))


KINDS = kinds_of(
    "counting",
    {
        1: (lattice_points,),
        2: (dice_totals, coin_ways, assignments, subset_sums, blocked_paths),
    },
)
