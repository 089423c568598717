"""Problems that come with a small table: choosing, routing, grouping, fitting."""

from __future__ import annotations

import itertools
from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction

from trajgym.envs.code_problem import Draw, Problem, kinds_of, rounded

__all__ = ["KINDS"]

_REGIONS = ("north", "south", "east", "west")
_TOWNS = "ABCDEFGHIJKL"


def best_load(draw: Draw) -> Problem:
    """Fill a bag with the best things; the answer goes thing by thing instead of set by set."""
    n = draw.whole(11, 13)
    weights, values = draw.wholes(n, 5, 60), draw.wholes(n, 10, 150)
    capacity = sum(weights) * draw.whole(35, 60) // 100
    best = [0] * (capacity + 1)  # by capacity
    for weight, value in zip(weights, values, strict=True):
        best = [max(b, best[c - weight] + value if c >= weight else 0) for c, b in enumerate(best)]
    table = "\n".join(f"{w},{v}" for w, v in zip(weights, values, strict=True))
    question = draw.pick(
        (
            f"Each line gives the weight and the value of one thing:\n{table}\nAny of these things can be chosen, each "
            f"at most once, as long as their total weight is at most {capacity}. What is the largest possible total "
            "value?",
            f"{draw.name()} can carry at most {capacity} kilograms. These things are for sale (weight in kilograms, "
            f"profit in dollars; one piece of each):\n{table}\nWhat is the highest profit of a load?",
        )
    )
    data = f"""
        things = {list(zip(weights, values, strict=True))}
        len(things), sum(weight for weight, value in things)
    """
    search = f"""
        best = 0
        for chosen in range(2 ** len(things)):
            weight = value = 0
            for i, (w, v) in enumerate(things):
                if chosen >> i & 1:
                    weight += w
                    value += v
            if weight <= {capacity} and value > best:
                best = value
        best
    """
    return Problem(question, best[capacity], (data, search))


def shortest_route(draw: Draw) -> Problem | None:
    """Find the shortest way on a map; the answer lets the towns in one by one (Floyd and Warshall)."""
    towns = _TOWNS[: draw.whole(10, 12)]
    pairs = sorted(draw.some(list(itertools.combinations(towns, 2)), 2 * len(towns) - 1))
    roads = {pair: draw.whole(10, 99) for pair in pairs}
    length = {(a, b): float("inf") for a in towns for b in towns}
    for (a, b), miles in roads.items():
        length[a, b] = length[b, a] = miles
    for via, a, b in itertools.product(towns, repeat=3):
        length[a, b] = min(length[a, b], length[a, via] + length[via, b])
    start, goal = towns[0], towns[-1]
    if length[start, goal] == float("inf") or (start, goal) in roads:
        return None
    shown = ", ".join(f"{a}-{b} {miles}" for (a, b), miles in roads.items())
    question = draw.pick(
        (
            f"These roads, with their lengths in kilometres, connect the towns {towns[0]} to {towns[-1]}: {shown}. All "
            f"of them can be used in both directions. How many kilometres long is the shortest way from {start} to "
            f"{goal}?",
            f"In a network, a message between two computers takes so many milliseconds, in either direction: {shown}. "
            "There are no other connections, and passing a message on takes no time. After how many milliseconds, at "
            f"the earliest, can a message from {start} be at {goal}?",
        )
    )
    data = f"""
        roads = {[(a, b, miles) for (a, b), miles in roads.items()]}
        near = {{}}
        for a, b, length in roads:
            near.setdefault(a, []).append((b, length))
            near.setdefault(b, []).append((a, length))
        len(near)
    """
    search = f"""
        import heapq

        queue, done = [(0, "{start}")], {{}}
        while queue:
            length, town = heapq.heappop(queue)
            if town not in done:
                done[town] = length
                for other, more in near[town]:
                    heapq.heappush(queue, (length + more, other))
        done["{goal}"]
    """
    return Problem(question, int(length[start, goal]), (data, search))


def spending_gap(draw: Draw) -> Problem:
    """Compare customers' totals; the answer counts in cents, from the rows and not from their text."""
    rows = [(draw.pick("ABCDE"), draw.whole(2, 19), draw.whole(105, 2_499)) for _ in range(draw.whole(14, 20))]
    totals: Counter[str] = Counter()
    for customer, quantity, cents in rows:
        totals[customer] += quantity * cents
    (_, first), (_, second), *_ = [*totals.most_common(2), ("", 0)]
    table = "\n".join(f"{customer};{quantity};{_dollars(cents)}" for customer, quantity, cents in rows)
    question = draw.pick(
        (
            f"Each line is an order: customer; number of pieces; price of one piece in dollars.\n{table}\nAdd up what "
            "each customer has to pay. How many dollars lie between the customer who pays most and the one who pays "
            "second most?",
            f"A shop's order list has the columns customer, pieces and dollars per piece:\n{table}\nBy how many "
            "dollars is the largest total of a customer above the second largest total of a customer?",
        )
    )
    data = f"""
        from decimal import Decimal

        orders = {table!r}
        totals = {{}}
        for line in orders.splitlines():
            customer, pieces, price = line.split(";")
            totals[customer] = totals.get(customer, 0) + int(pieces) * Decimal(price)
        totals
    """
    compare = """
        ordered = sorted(totals.values(), reverse=True)
        print(ordered[0] - ordered[1])
    """
    return Problem(question, _dollars(first - second), (data, compare))


def _dollars(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


def group_deviation(draw: Draw) -> Problem | None:
    """Work out one group's standard deviation; the answer is the root of an exact fraction."""
    rows = [(draw.pick(_REGIONS), draw.whole(3, 60), draw.whole(11, 99)) for _ in range(draw.whole(14, 20))]
    region = draw.pick(_REGIONS)
    revenue = [units * price for name, units, price in rows if name == region]
    if len(revenue) < 3:
        return None
    mean = Fraction(sum(revenue), len(revenue))
    variance = sum(((amount - mean) ** 2 for amount in revenue), Fraction(0)) / len(revenue)
    with localcontext(prec=40):
        answer = rounded(Fraction((Decimal(variance.numerator) / Decimal(variance.denominator)).sqrt()), 2)
    if answer is None:
        return None
    table = "\n".join(f"{name},{units},{price}" for name, units, price in rows)
    question = draw.pick(
        (
            f"Sales by region, in the columns region, units and price per unit:\n{table}\nThe revenue of a row is "
            f"units times price. What is the population standard deviation (divide by the number of rows) of the "
            f"revenue of the rows of the region {region}, rounded to two decimals?",
            f"A file holds lines of the form region,units,price:\n{table}\nTake the lines of the region {region} only, "
            "multiply units by price in each, and give the standard deviation of the products, with n and not n - 1 in "
            "the denominator, rounded to two decimals.",
        )
    )
    data = f"""
        import numpy as np

        rows = {rows}
        revenue = np.array([units * price for region, units, price in rows if region == "{region}"])
        revenue
    """
    return Problem(question, answer, (data, "round(float(np.std(revenue)), 2)"))


def fitted_line(draw: Draw) -> Problem | None:
    """Extend a least-squares line; the answer is an exact fraction."""
    n = draw.whole(8, 12)
    xs = sorted(draw.some(range(1, 60), n))
    slope, offset = draw.whole(-9, 9), draw.whole(50, 300)
    ys = [slope * x + offset + draw.whole(-40, 40) for x in xs]
    at = draw.whole(61, 120)
    # Residuals are orthogonal to 1 and to x: two equations, solved by Cramer's rule.
    sx, sy, sxx, sxy = sum(xs), sum(ys), sum(x * x for x in xs), sum(x * y for x, y in zip(xs, ys, strict=True))
    determinant = n * sxx - sx * sx
    answer = rounded(Fraction((n * sxy - sx * sy) * at + sxx * sy - sx * sxy, determinant), 3)
    if answer is None:
        return None
    shown = ", ".join(f"({x}, {y})" for x, y in zip(xs, ys, strict=True))
    question = draw.pick(
        (
            f"A straight line y = m*x + b is fitted by least squares to the points {shown}. What is its value at "
            f"x = {at}, rounded to three decimals?",
            f"Measurements (x, y): {shown}. By ordinary linear regression of y on x, with intercept, which y is "
            f"predicted for x = {at}? Round to three decimals.",
        )
    )
    data = f"""
        import numpy as np

        points = np.array({[list(point) for point in zip(xs, ys, strict=True)]}, dtype=float)
        slope, intercept = np.polyfit(points[:, 0], points[:, 1], 1)
        slope, intercept
    """
    return Problem(question, answer, (data, f"round(float(slope * {at} + intercept), 3)"))


KINDS = kinds_of(
    "tables",
    {
        2: (best_load, shortest_route, spending_gap),
        3: (group_deviation, fitted_line),
    },
)
