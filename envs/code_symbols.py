"""Problems for sympy: integrals, derivatives, coefficients, extrema, equations.

Here the answers are worked out with whole numbers and fractions; only the demonstrations need sympy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeVar

from trajgym.envs.code_problem import Draw, Problem, kinds_of, listed, rounded

__all__ = ["KINDS"]

N = TypeVar("N", int, Fraction)


def power_integral(draw: Draw) -> Problem | None:
    """Integrate a power of a polynomial; the answer multiplies it out."""
    base = [draw.whole(-6, 6), draw.whole(-9, 9), draw.whole(1, 9)]
    exponent, end = draw.whole(3, 5), draw.whole(1, 2)
    if not base[0] or not base[1]:
        return None
    area = sum((Fraction(c * end ** (k + 1), k + 1) for k, c in enumerate(_power(base, exponent))), Fraction(0))
    if area.denominator < 5:
        return None
    text = f"({_shown(base)})^{exponent}"
    question = draw.pick(
        (
            f"The integral of {text} with respect to x from 0 to {end} is a fraction p/q in lowest terms with q > 0. "
            "What is p + q?",
            f"Integrate f(x) = {text} over 0 <= x <= {end} and write the result as a fully reduced fraction with a "
            "positive denominator. What is the sum of its numerator and its denominator?",
        )
    )
    integral = f"""
        from sympy import Poly, symbols

        x = symbols("x")
        antiderivative = (Poly({_code(base)}, x) ** {exponent}).integrate()
        antiderivative
    """
    evaluate = f"""
        value = antiderivative.eval({end}) - antiderivative.eval(0)
        value.p + value.q
    """
    return Problem(question, area.numerator + area.denominator, (integral, evaluate))


def expansion_coefficient(draw: Draw) -> Problem | None:
    """Find a coefficient of a product of powers; the answer multiplies lists of coefficients."""
    first = [draw.whole(1, 3), draw.whole(-3, 3), draw.whole(-3, 3)]
    second = [draw.whole(1, 3), draw.whole(-3, 3)]
    p, q = draw.whole(4, 8), draw.whole(4, 8)
    degree = draw.whole(4, p + q)
    if not first[1] or not first[2] or not second[1]:
        return None
    coefficient = _times(_power(first, p), _power(second, q))[degree]
    if abs(coefficient) < 1_000:
        return None
    text = f"({_shown(first)})^{p} * ({_shown(second)})^{q}"
    question = draw.pick(
        (
            f"What is the coefficient of x^{degree} when {text} is multiplied out?",
            f"Expand the product {text} and collect the powers of x. Which number stands before x^{degree}?",
        )
    )
    expand = f"""
        from sympy import Poly, symbols

        x = symbols("x")
        product = Poly({_code(first)}, x) ** {p} * Poly({_code(second)}, x) ** {q}
        product.degree()
    """
    return Problem(question, coefficient, (expand, f"product.coeff_monomial(x**{degree})"))


def interval_minimum(draw: Draw) -> Problem | None:
    """Minimise a polynomial on an interval; the answer looks at whole numbers, among which are all candidates."""
    turns = sorted(draw.some(range(-6, 8), 5))
    low, high = turns[0] + draw.whole(-1, 2), turns[-1] + draw.whole(-2, 1)
    slope = [60]  # f'(x) = 60 (x - r1) ... (x - r5), so that f has whole coefficients
    for turn in turns:
        slope = _times(slope, [-turn, 1])
    f = [draw.whole(-99, 99), *(c // (k + 1) for k, c in enumerate(slope))]
    if low >= turns[2] or high <= turns[2] or not all(f):
        return None
    least = min(_value(f, x) for x in range(low, high + 1))
    question = draw.pick(
        (
            f"What is the smallest value of f(x) = {_shown(f)} for real numbers x with {low} <= x <= {high}?",
            f"On the closed interval from {low} to {high}, the function f(x) = {_shown(f)} has a minimum. What is the "
            "minimal value?",
        )
    )
    differentiate = f"""
        from sympy import diff, solve, symbols

        x = symbols("x", real=True)
        f = {_code(f)}
        turns = solve(diff(f, x), x)
        turns
    """
    compare = f"""
        candidates = [{low}, {high}] + [t for t in turns if {low} <= t <= {high}]
        min(f.subs(x, c) for c in candidates)
    """
    return Problem(question, least, (differentiate, compare))


def characteristic_coefficient(draw: Draw) -> Problem | None:
    """Find a coefficient of a characteristic polynomial; the answer adds up principal minors."""
    matrix = [draw.wholes(5, -6, 6) for _ in range(5)]
    power = draw.whole(1, 2)
    chosen = itertools.combinations(range(5), 5 - power)
    minors = sum(_leibniz([[matrix[i][j] for j in places] for i in places]) for places in chosen)
    coefficient = minors if power == 1 else -minors
    if abs(coefficient) < 10:
        return None
    rows = listed(matrix)
    question = draw.pick(
        (
            f"Let M be the matrix with the rows {rows}, and I the identity matrix. What is the coefficient of "
            f"t^{power} in the polynomial det(t*I - M)?",
            f"A 5 by 5 matrix has the rows {rows}. In its characteristic polynomial, written with the leading term "
            f"t^5, which number stands before t^{power}? (It may be negative.)",
        )
    )
    data = f"""
        from sympy import Matrix, symbols

        t = symbols("t")
        polynomial = Matrix({matrix}).charpoly(t)
        polynomial.as_expr()
    """
    return Problem(question, coefficient, (data, f"polynomial.coeff_monomial(t**{power})"))


def _leibniz(matrix: Sequence[Sequence[int]]) -> int:
    """Return the determinant as the signed sum over permutations."""
    total = 0
    for order in itertools.permutations(range(len(matrix))):
        swaps = sum(a > b for a, b in itertools.combinations(order, 2))
        total += (-1) ** swaps * math.prod(row[j] for row, j in zip(matrix, order, strict=True))
    return total


def high_derivative(draw: Draw) -> Problem | None:
    """Differentiate a product many times; the answer is Leibniz' rule."""
    polynomial = [draw.whole(-9, 9) for _ in range(3)] + [draw.whole(1, 9)]
    rate, order = draw.pick((-4, -3, -2, 2, 3, 4)), draw.whole(5, 9)
    value = sum(math.comb(order, k) * math.factorial(k) * c * rate ** (order - k) for k, c in enumerate(polynomial))
    if not all(polynomial) or abs(value) < 100:
        return None
    text = f"({_shown(polynomial)}) * exp({rate}*x)"
    question = draw.pick(
        (
            f"What is the value at x = 0 of the derivative of order {order} of f(x) = {text}?",
            f"The function f(x) = {text} is differentiated {order} times. Which value does the result take at x = 0?",
        )
    )
    define = f"""
        from sympy import diff, exp, symbols

        x = symbols("x")
        f = ({_code(polynomial)}) * exp({rate} * x)
        derivative = diff(f, x, {order})
        derivative
    """
    return Problem(question, value, (define, "derivative.subs(x, 0)"))


def real_root(draw: Draw) -> Problem | None:
    """Solve an equation of degree five; the answer halves an interval between whole multiples of a tiny step."""
    a, b, c = draw.whole(1, 20), draw.whole(1, 40), draw.whole(50, 9_000)
    f = [-c, b, 0, a, 0, 1]
    steps = 10**8
    low, high = 0, 7 * steps  # f grows, f(0) < 0 and f(7) > 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _value(f, Fraction(middle, steps)) < 0 else (low, middle)
    answer = rounded(Fraction(low, steps), 4)
    if answer is None:
        return None
    question = draw.pick(
        (
            f"The equation x^5 + {a}*x^3 + {b}*x = {c} has exactly one real solution. What is it, rounded to four "
            "decimals?",
            f"For which real number x is {_shown(f)} equal to 0? There is only one; round it to four decimals.",
        )
    )
    define = f"""
        from sympy import Poly, symbols

        x = symbols("x")
        roots = Poly({_code(f)}, x).nroots(n=15)
        roots
    """
    return Problem(question, answer, (define, "[round(float(root), 4) for root in roots if root.is_real][0]"))


def _times(a: Sequence[int], b: Sequence[int]) -> list[int]:
    product = [0] * (len(a) + len(b) - 1)
    for (i, x), (j, y) in itertools.product(enumerate(a), enumerate(b)):
        product[i + j] += x * y
    return product


def _power(polynomial: Sequence[int], exponent: int) -> list[int]:
    power = [1]
    for _ in range(exponent):
        power = _times(power, polynomial)
    return power


def _value(polynomial: Sequence[int], x: N) -> N:
    value = 0 * x
    for coefficient in reversed(polynomial):
        value = value * x + coefficient
    return value


def _shown(coefficients: Sequence[int]) -> str:
    """Write a polynomial for the reader, the highest power first; ``coefficients[k]`` belongs to ``x^k``."""
    text = ""
    for k, c in reversed(list(enumerate(coefficients))):
        if c:
            power = "" if k == 0 else "x" if k == 1 else f"x^{k}"
            number = "" if abs(c) == 1 and power else f"{abs(c)}{'*' if power else ''}"
            sign = (" - " if c < 0 else " + ") if text else ("-" if c < 0 else "")
            text += f"{sign}{number}{power}"
    return text


def _code(coefficients: Sequence[int]) -> str:
    """Write a polynomial as a Python expression."""
    return _shown(coefficients).replace("^", "**")


KINDS = kinds_of(
    "symbols",
    {
        3: (
            power_integral,
            expansion_coefficient,
            interval_minimum,
            characteristic_coefficient,
            high_derivative,
            real_root,
        )
    },
)
