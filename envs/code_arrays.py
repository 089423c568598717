"""Problems for numpy: matrices, linear equations, chains of states, long arrays."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from trajgym.envs.code_problem import Draw, Problem, kinds_of, listed, rounded

__all__ = ["KINDS"]

_FRUIT = ("apples", "pears", "plums", "lemons", "oranges", "peaches", "kiwis", "mangos")
_WEATHER = ("sunny", "cloudy", "rainy")


def determinant(draw: Draw) -> Problem | None:
    """Take a determinant; the answer stays with whole numbers (Bareiss)."""
    size = draw.whole(5, 6)
    matrix = [draw.wholes(size, -9, 9) for _ in range(size)]
    value = _determinant(matrix)
    if abs(value) < 100:
        return None
    question = draw.pick(
        (
            f"What is the determinant of the {size} by {size} matrix with the rows {_rows(matrix)}?",
            f"The rows of a square matrix are {_rows(matrix)}. Compute its determinant, which is a whole number.",
        )
    )
    data = f"""
        import numpy as np

        matrix = np.array({matrix})
        matrix.shape
    """
    return Problem(question, value, (data, "round(float(np.linalg.det(matrix)))"))


def _determinant(matrix: Sequence[Sequence[int]]) -> int:
    """Eliminate without fractions: each division leaves no remainder."""
    rows, sign, before = [list(row) for row in matrix], 1, 1
    for k in range(len(rows) - 1):
        pivot = next((i for i in range(k, len(rows)) if rows[i][k]), None)
        if pivot is None:
            return 0
        if pivot != k:
            rows[k], rows[pivot], sign = rows[pivot], rows[k], -sign
        for i in range(k + 1, len(rows)):
            for j in range(k + 1, len(rows)):
                rows[i][j] = (rows[i][j] * rows[k][k] - rows[i][k] * rows[k][j]) // before
        before = rows[k][k]
    return sign * rows[-1][-1]


def basket_prices(draw: Draw) -> Problem | None:
    """Solve for prices; the answer knows the prices from which the totals were made."""
    n = draw.whole(4, 5)
    fruit, prices = draw.some(_FRUIT, n), draw.wholes(n, 15, 240)
    baskets, wanted = [draw.wholes(n, 2, 12) for _ in range(n)], draw.wholes(n, 13, 40)
    if _determinant(baskets) == 0:
        return None
    totals = [_cost(prices, basket) for basket in baskets]
    lines = "; ".join(f"{_basket(b, fruit)} cost {total} cents" for b, total in zip(baskets, totals, strict=True))
    question = draw.pick(
        (
            f"At a market stall, two pieces of the same fruit always cost the same. {lines}. How many cents do "
            f"{_basket(wanted, fruit)} cost?",
            f"{draw.name()} finds {n} old receipts: {lines}. The price of a piece of each fruit has not changed. How "
            f"many cents must be paid for {_basket(wanted, fruit)}?",
        )
    )
    solve = f"""
        import numpy as np

        baskets = np.array({baskets})
        prices = np.linalg.solve(baskets, np.array({totals}))
        prices = np.rint(prices).astype(int)
        prices
    """
    return Problem(question, _cost(prices, wanted), (solve, f"int(prices @ np.array({wanted}))"))


def _cost(prices: Sequence[int], counts: Sequence[int]) -> int:
    return sum(p * n for p, n in zip(prices, counts, strict=True))


def _basket(counts: Sequence[int], fruit: Sequence[str]) -> str:
    return listed([f"{n} {name}" for n, name in zip(counts, fruit, strict=True)])


def matrix_power(draw: Draw) -> Problem:
    """Raise a matrix to a power modulo m; the answer squares its way there."""
    matrix = [draw.wholes(3, 0, 9) for _ in range(3)]
    n, modulus = draw.whole(40, 600), draw.whole(500, 9_999)
    power, square, exponent = [[1, 0, 0], [0, 1, 0], [0, 0, 1]], matrix, n
    while exponent:
        if exponent % 2:
            power = _product(power, square, modulus)
        square, exponent = _product(square, square, modulus), exponent // 2
    question = draw.pick(
        (
            f"Let M be the matrix with the rows {_rows(matrix)}. What is the remainder of the sum of all nine entries "
            f"of M^{n} (the matrix product of {n} factors M) on division by {modulus}?",
            f"The matrix M has the rows {_rows(matrix)}. Add up all entries of the matrix power M^{n} and reduce the "
            f"sum modulo {modulus}. What is the result?",
        )
    )
    data = f"""
        import numpy as np

        matrix = np.array({matrix})
        power = np.eye(3, dtype=int)
        for _ in range({n}):
            power = power @ matrix % {modulus}
        power
    """
    return Problem(question, sum(map(sum, power)) % modulus, (data, f"int(power.sum()) % {modulus}"))


def _product(a: Sequence[Sequence[int]], b: Sequence[Sequence[int]], modulus: int) -> list[list[int]]:
    return [
        [sum(x * y for x, y in zip(row, column, strict=True)) % modulus for column in zip(*b, strict=True)] for row in a
    ]


def weather_chance(draw: Draw) -> Problem | None:
    """Follow a chain of three states; the answer is an exact fraction."""
    chances = []
    for _ in _WEATHER:
        first = 5 * draw.whole(1, 17)
        second = 5 * draw.whole(1, 19 - first // 5)
        chances.append([first, second, 100 - first - second])
    begin, end, days = draw.whole(0, 2), draw.whole(0, 2), draw.whole(3, 7)
    now = [Fraction(state == begin) for state in range(3)]
    for _ in range(days):
        now = [sum((now[i] * chances[i][j] for i in range(3)), Fraction(0)) / 100 for j in range(3)]
    answer = rounded(100 * now[end], 3)
    if answer is None:
        return None
    rules = " ".join(
        f"After a {_WEATHER[i]} day, the next day is {_WEATHER[0]} with {a}%, {_WEATHER[1]} with {b}% and "
        f"{_WEATHER[2]} with {c}% probability."
        for i, (a, b, c) in enumerate(chances)
    )
    question = draw.pick(
        (
            f"{rules} Today is {_WEATHER[begin]}. What is the probability, in percent, that it is {_WEATHER[end]} "
            f"{days} days from now? Round to three decimals.",
            f"In a model of the weather, a day's weather depends only on the day before. {rules} Day 0 is "
            f"{_WEATHER[begin]}. How many percent is the probability that day {days} is {_WEATHER[end]}, rounded to "
            "three decimals?",
        )
    )
    data = f"""
        import numpy as np

        chances = np.array({chances}) / 100
        chances.sum(axis=1)
    """
    power = f"""
        later = np.linalg.matrix_power(chances, {days})
        round(100 * float(later[{begin}, {end}]), 3)
    """
    return Problem(question, answer, (data, power))


def best_window(draw: Draw) -> Problem:
    """Find the largest sum of a window; the answer slides along."""
    n, width = draw.whole(150, 600), draw.whole(5, 30)
    a, b, c = draw.whole(2, 60), draw.whole(0, 60), draw.whole(0, 60)
    modulus = draw.whole(101, 999)
    readings = [(a * i * i + b * i + c) % modulus for i in range(1, n + 1)]
    total = best = sum(readings[:width])
    for gone, new in zip(readings, readings[width:], strict=False):
        total += new - gone
        best = max(best, total)
    question = draw.pick(
        (
            f"Reading number i is ({a}*i^2 + {b}*i + {c}) mod {modulus}, for i = 1, 2, ..., {n}. What is the largest "
            f"sum of {width} consecutive readings?",
            f"A machine makes {n} parts; part i (counted from 1) takes ({a}*i^2 + {b}*i + {c}) mod {modulus} seconds. "
            f"Among all runs of {width} parts made one after the other, what is the longest total time, in seconds?",
        )
    )
    data = f"""
        import numpy as np

        i = np.arange(1, {n} + 1)
        readings = ({a} * i**2 + {b} * i + {c}) % {modulus}
        readings[:5]
    """
    window = f"""
        sums = np.convolve(readings, np.ones({width}, dtype=int), mode="valid")
        int(sums.max())
    """
    return Problem(question, best, (data, window))


def _rows(matrix: Sequence[Sequence[int]]) -> str:
    return listed([list(row) for row in matrix])


KINDS = kinds_of("arrays", {3: (determinant, basket_prices, matrix_power, weather_chance, best_window)})
