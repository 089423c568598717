"""Comparing formulas by their values at random points, where they are more than quotients of polynomials.

At least eight points are drawn for each pair of formulas, exact rationals of both signs and four sizes; for formulas
with kinks, such as ``|x|``, also points far beyond the largest number in them and far below the smallest. Two formulas
pass for the same when they have the same value wherever it can be decided, at four points or more. They are taken to as
many digits as that takes (:mod:`trajgym.rewards.symbolic_values`), whatever the sizes of their parts; where it would
take too many, the point does not count. A formula is real where it can be: the cube root of -8 is -2. Elsewhere the
principal complex value counts, so ``sqrt(x^2)`` is not ``x``.

How likely two different formulas pass: along one variable they agree at a drawn point only if one of their z common
values in that stretch is hit, out of 10^9 candidates each, so by chance with probability (z / 10^9)^4 or less. Formulas
that differ only within a small part of one stretch are taken for the same.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from trajgym.rewards.expression_tree import Call, Constant, Node, Number, Power, Scalar, Symbol, parts, symbols
from trajgym.rewards.symbolic_exact import UndefinedError, constant
from trajgym.rewards.symbolic_values import Evaluator, Point, Value

__all__ = ["bounded_work", "has_a_value", "same_values", "sign_of_ratio", "values_in_proportion"]

_ROUGH = 128  # bits of a first look, which tells how many a decision takes
_SPARE = 128  # bits beyond what a decision takes, for errors of rounding
_MAX_PRECISION = 16_000  # bits
_MAX_WORK = 40_000  # bits of precision times functions
_MAX_WORK_OF_ALL = 1_000_000  # the same for all the points of all the formulas in two answers: about a second
_MAX_FUNCTIONS = 60  # and powers, in both formulas together

_CELLS = tuple((sign, Fraction(size)) for size in (1, 10, 100, 100_000) for sign in (1, -1))
_COUNTS = (3, 6, 12, 25, 50, 100, 200, 350)  # for what a factorial is taken of: whole numbers up to these
_STEPS = 10**9
_TRIES = 3  # per point
_ENOUGH = 4

_of_this_thread = threading.local()  # a context of mpmath's must not be used by two at once


@contextlib.contextmanager
def bounded_work() -> Iterator[None]:
    """Bound the work of all comparisons inside; beyond it they raise :class:`UndefinedError`."""
    _of_this_thread.left = _MAX_WORK_OF_ALL
    try:
        yield
    finally:
        del _of_this_thread.left


def same_values(a: Scalar, b: Scalar) -> bool:
    """Whether two formulas have the same values.

    Raises:
        UndefinedError: When they hold more functions and powers than an answer does.
        ConfigError: When mpmath is not installed.
    """
    agreed = 0
    for tries in _points(a, b):
        for point in tries:
            try:
                same = _agree((a, b), [point])
            except UndefinedError:
                continue
            if not same:
                return False
            agreed += 1
            break
    return agreed >= (_ENOUGH if symbols(a) | symbols(b) else 1)


def values_in_proportion(a: Scalar, b: Scalar) -> int:
    """Return the sign of the constant that ``a`` is a multiple of ``b`` by; 0 when there is none.

    Raises:
        UndefinedError: When they hold more functions and powers than an answer does.
        ConfigError: When mpmath is not installed.
    """
    first, sign, agreed = None, 0, 0
    for tries in _points(a, b):
        for point in tries:
            try:
                if first is None:
                    first, sign = point, _sign_of_ratio(a, b, point)
                elif not _agree((a, b), [first, point]):
                    return 0
            except UndefinedError:
                first = first if sign else None
                continue
            if not sign:
                return 0
            agreed += 1
            break
    return sign if agreed >= _ENOUGH else 0


def sign_of_ratio(a: Scalar, b: Scalar) -> int:
    """Return the sign of the quotient of two formulas that are in proportion; 0 when it is not real, or has no value.

    Raises:
        UndefinedError: When they hold more functions and powers than an answer does.
        ConfigError: When mpmath is not installed.
    """
    for tries in _points(a, b):
        for point in tries:
            try:
                return _sign_of_ratio(a, b, point)
            except UndefinedError:
                continue
    return 0


def has_a_value(node: Scalar) -> bool:
    """Whether a formula whose denominators are not zero everywhere has a value of a bearable size somewhere.

    Raises:
        UndefinedError: When it holds more functions and powers than an answer does.
        ConfigError: When mpmath is not installed.
    """
    if not any(isinstance(part, Call | Constant) or _has_kinks(part) for part in parts(node)):
        return True
    for tries in _points(node, node):
        for point in tries:
            try:
                precision = _decisive([node], _rough([node], [point]))
                if precision:
                    _evaluator().value(node, point, precision)
            except UndefinedError:
                continue
            return True
    return False


def _evaluator() -> Evaluator:
    """Return this thread's evaluator; making one takes longer than using it."""
    if not hasattr(_of_this_thread, "evaluator"):
        _of_this_thread.evaluator = Evaluator()
    found: Evaluator = _of_this_thread.evaluator
    return found


def _agree(formulas: tuple[Scalar, Scalar], points: Sequence[Point]) -> bool:
    """Whether two formulas have the same value at a point, or are in the same ratio at two.

    Raises:
        UndefinedError: When one has no value there, or it would take too long to decide.
    """
    rough = _rough(formulas, points)
    if all(isinstance(value.number, Fraction) for value in rough):
        return not _difference(rough)
    precision = _decisive(formulas, rough)
    if not precision:
        raise UndefinedError
    _spend(precision * max(1, _hard(formulas)) * len(points))
    fine = [_evaluator().value(formula, point, precision) for point in points for formula in formulas]
    return _evaluator().vanishes(_difference(fine))


def _spend(work: int) -> None:
    if hasattr(_of_this_thread, "left"):
        _of_this_thread.left -= work


def _hard(formulas: Sequence[Scalar]) -> int:
    """Count the functions that take time."""
    return sum(isinstance(part, Call) or _has_kinks(part) for formula in formulas for part in parts(formula))


def _rough(formulas: Sequence[Scalar], points: Sequence[Point]) -> list[Value]:
    _spend(_ROUGH * (1 + _hard(formulas)) * len(points))
    return [_evaluator().value(formula, point, _ROUGH, rough=True) for point in points for formula in formulas]


def _decisive(formulas: Sequence[Scalar], values: Sequence[Value]) -> int:
    """Return the bits of precision that tell whether a difference of these values is zero; 0 when it is too many."""
    bits = sum(value.bits for value in values) + 1
    # Roots at two points are not the same ones, so that the degrees multiply.
    steps = range(0, len(values), len(formulas))
    at_points = [frozenset().union(*(v.roots for v in values[i : i + len(formulas)])) for i in steps]
    degree = math.prod(index for roots in at_points for index, _ in roots)
    if degree * bits > _MAX_PRECISION:
        return 0
    precision = 2 * int(degree * bits) + _SPARE
    work = precision * _hard(formulas) * len(at_points)
    return precision if precision <= _MAX_PRECISION and work <= _MAX_WORK else 0


def _difference(values: list[Value]) -> Any:
    """Return what vanishes when two values are the same, or two pairs of values in the same ratio."""
    numbers = [value.number for value in values]
    if not all(isinstance(number, Fraction) for number in numbers):
        numbers = [_evaluator().real(number) for number in numbers]
    if len(numbers) == 2:
        return numbers[0] - numbers[1]
    return numbers[0] * numbers[3] - numbers[1] * numbers[2]


def _sign_of_ratio(a: Scalar, b: Scalar, point: Point) -> int:
    top, low = _rough((a, b), [point])
    evaluator = _evaluator()
    if evaluator.vanishes(top.number) or evaluator.vanishes(low.number):
        raise UndefinedError
    ratio = evaluator.real(top.number) / evaluator.real(low.number)
    if isinstance(ratio, evaluator.context.mpc):
        if evaluator.context.mag(ratio.imag) > evaluator.context.mag(ratio.real) - _ROUGH / 2:
            return 0
        ratio = ratio.real
    return 1 if ratio > 0 else -1


def _points(a: Scalar, b: Scalar) -> Iterator[Iterator[Point]]:
    """Yield the points for two formulas, each as several tries; the formulas themselves are the seed.

    Raises:
        UndefinedError: When they hold more functions and powers than an answer does, or all the work is spent.
    """
    everything = [*parts(a), *parts(b)]
    if sum(isinstance(part, Call | Power) for part in everything) > _MAX_FUNCTIONS:
        raise UndefinedError
    names = sorted(symbols(a) | symbols(b))
    if not names:
        yield iter([{}])
        return
    generator = random.Random(f"{a} {b}")
    cells = _CELLS + (_extremes(everything) if any(map(_has_kinks, everything)) else ())
    counted = {
        name
        for part in everything
        if isinstance(part, Call) and part.name in ("factorial", "binomial")
        for name in symbols(part)
    }
    counts = (_COUNTS * 2)[: len(cells)]
    drawn = [
        [(1, Fraction(count)) for count in counts] if name in counted else generator.sample(cells, len(cells))
        for name in names
    ]
    for chosen in zip(*drawn, strict=True):
        if getattr(_of_this_thread, "left", 1) <= 0:
            raise UndefinedError
        yield (
            {
                name: Fraction(generator.randint(1, int(size)))
                if name in counted
                else sign * size * generator.randint(1, _STEPS) / _STEPS
                for name, (sign, size) in zip(names, chosen, strict=True)
            }
            for _ in range(_TRIES)
        )


def _has_kinks(part: Node) -> bool:
    if isinstance(part, Power):
        exponent = constant(part.exponent)
        return exponent is None or exponent.denominator != 1
    return isinstance(part, Call) and part.name in ("abs", "floor", "ceil")


def _extremes(everything: list[Node]) -> tuple[tuple[int, Fraction], ...]:
    """Return signs and sizes beyond what numbers the formulas hold, or make."""
    point = {part.name: Fraction(1) for part in everything if isinstance(part, Symbol)}
    bits = 32.0
    for part in everything:
        if isinstance(part, Number | Power):
            try:
                bits += _rough([part], [point])[0].bits
            except UndefinedError:
                continue
    size = 2 ** int(min(bits, _MAX_PRECISION))
    return tuple((sign, scale) for scale in (Fraction(size), Fraction(1, size)) for sign in (1, -1))
