"""The numeric half of comparing formulas: their values at random points, to many digits.

Eight points are drawn for each pair of formulas, exact rationals of both signs and four sizes. Two formulas pass for
the same when they agree at every point where both have a value, at four points or more. A formula is real where it can
be: the cube root of -8 is -2. Elsewhere the principal complex value counts, so ``sqrt(x^2)`` is not ``x``.

How likely two different formulas pass: along one variable they agree at a drawn point only if one of their z common
values in that stretch is hit, out of 10^9 candidates each, so by chance with probability (z / 10^9)^4 or less.
Formulas that differ by less than 1 part in 10^60, or only in a small part of one stretch, are taken for the same.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from trajgym.errors import ConfigError
from trajgym.rewards.expression_tree import (
    Call,
    Constant,
    Node,
    Number,
    Power,
    Product,
    Scalar,
    Sum,
    Symbol,
    parts,
    symbols,
)
from trajgym.rewards.symbolic_exact import UndefinedError, constant

__all__ = ["same_values", "values_in_proportion"]

_DIGITS, _FEWER_DIGITS = 80, 40
_SAME = Fraction(1, 10**60)  # relative difference below which two values of 80 digits are one
_DIFFERENT = Fraction(1, 10**30)  # and above which they are two for certain
_CELLS = tuple((sign, size) for size in (1, 10, 100, 100_000) for sign in (1, -1))
_STEPS = 10**9
_TRIES = 3  # per point
_ENOUGH = 4
_MAX_ARGUMENT = 10**6  # of functions that grow, or that turn around: the work grows with its size
_MAX_BITS = 4_000_000  # size of a value: its binary exponent

_MAX_FUNCTIONS = 60  # and powers, in both formulas together

Point = Mapping[str, Fraction]

_of_this_thread = threading.local()  # a context of mpmath's must not be used by two at once


def same_values(a: Scalar, b: Scalar) -> bool:
    """Whether two formulas have the same values.

    Raises:
        UndefinedError: When they hold more functions and powers than an answer does.
        ConfigError: When mpmath is not installed.
    """
    names = sorted(symbols(a) | symbols(b))
    _check_work(a, b)
    fine, coarse = _evaluators()
    agreed = 0
    for points in _points(names, f"{a} {b}"):
        for point in points:
            try:
                if not _agree(a, b, point, fine, coarse):
                    return False
            except UndefinedError:
                continue
            agreed += 1
            break
    return agreed >= (_ENOUGH if names else 1)


def values_in_proportion(a: Scalar, b: Scalar) -> int:
    """Return the sign of the constant that ``a`` is a multiple of ``b`` by; 0 when there is none.

    Raises:
        UndefinedError: When they hold more functions and powers than an answer does.
        ConfigError: When mpmath is not installed.
    """
    _check_work(a, b)
    evaluator, _ = _evaluators()
    ratio: Any = None
    agreed = 0
    for points in _points(sorted(symbols(a) | symbols(b)), f"{a} {b}"):
        for point in points:
            try:
                here = evaluator.ratio(a, b, point)
            except UndefinedError:
                continue
            if ratio is None:
                ratio = here
            if abs(here - ratio) > abs(ratio) * evaluator.number(_SAME * 10**10):
                return 0
            agreed += 1
            break
    if agreed < _ENOUGH or not evaluator.is_real(ratio):
        return 0
    return 1 if ratio > 0 else -1


def _check_work(*formulas: Scalar) -> None:
    if sum(isinstance(part, Call | Power) for formula in formulas for part in parts(formula)) > _MAX_FUNCTIONS:
        raise UndefinedError


def _evaluators() -> tuple[_Evaluator, _Evaluator]:
    """Return this thread's evaluators with many and with fewer digits; making them takes longer than using them."""
    if not hasattr(_of_this_thread, "evaluators"):
        _of_this_thread.evaluators = _Evaluator(_DIGITS), _Evaluator(_FEWER_DIGITS)
    found: tuple[_Evaluator, _Evaluator] = _of_this_thread.evaluators
    return found


def _points(names: list[str], seed: str) -> Iterator[Iterator[Point]]:
    """Yield eight points, each as several tries; the formulas themselves are the seed."""
    if not names:
        yield iter([{}])
        return
    generator = random.Random(seed)
    cells = [generator.sample(_CELLS, len(_CELLS)) for _ in names]
    for chosen in zip(*cells, strict=True):
        yield (
            {
                name: Fraction(sign * size * generator.randint(1, _STEPS), _STEPS)
                for name, (sign, size) in zip(names, chosen, strict=True)
            }
            for _ in range(_TRIES)
        )


def _agree(a: Scalar, b: Scalar, point: Point, fine: _Evaluator, coarse: _Evaluator) -> bool:
    """Whether two formulas have the same value at a point.

    Where both values nearly vanish, as in ``sin(pi)`` beside 0, it takes a second look with fewer digits: a difference
    that is an error of rounding grows then, one that is real does not.
    """
    left, right = fine.value(a, point), fine.value(b, point)
    difference, size = abs(left - right), max(abs(left), abs(right))
    if difference <= fine.number(_SAME) * size:
        return True
    if difference > fine.number(_DIFFERENT) * max(size, 1):
        return False
    rough = abs(coarse.value(a, point) - coarse.value(b, point))
    return bool(difference * 10**20 <= rough)


class _Evaluator:
    """Values of formulas to a fixed number of digits.

    It has a context of mpmath's to itself: the shared one's precision is everybody's to change.
    """

    def __init__(self, digits: int) -> None:
        try:
            from mpmath import MPContext
        except ImportError as error:
            raise ConfigError(
                "Comparing formulas needs mpmath, which is not installed: pip install 'trajgym[math]'."
            ) from error
        self.context = context = MPContext()
        context.dps = digits
        self.functions: dict[str, Callable[..., Any]] = {
            **{name: getattr(context, name) for name in ("sin", "cos", "tan", "cot", "sec", "csc")},
            **{name: getattr(context, name) for name in ("sinh", "cosh", "tanh")},
            **{f"arc{name}": getattr(context, f"a{name}") for name in ("sin", "cos", "tan")},
        }

    def number(self, value: Fraction) -> Any:
        return self.context.mpf(value.numerator) / value.denominator

    def is_real(self, value: Any) -> bool:
        return isinstance(value, self.context.mpf)

    def value(self, node: Scalar, point: Point) -> Any:
        """Return the value at a point, a real or complex number of mpmath's.

        Raises:
            UndefinedError: When there is none, or none of a bearable size.
        """
        try:
            return self._value(node, point)
        except (ArithmeticError, ValueError) as error:
            raise UndefinedError from error

    def ratio(self, a: Scalar, b: Scalar, point: Point) -> Any:
        """Return the quotient of two values.

        Raises:
            UndefinedError: As for :meth:`value`, and when the second value is zero.
        """
        top, low = self.value(a, point), self.value(b, point)
        if not low or not top:
            raise UndefinedError
        return top / low

    def _value(self, node: Node, point: Point) -> Any:
        match node:
            case Number(value):
                return self.number(value)
            case Symbol(name):
                return self.number(point[name])
            case Constant(name) if name != "infinity":
                return {"pi": +self.context.pi, "e": +self.context.e, "i": self.context.mpc(0, 1)}[name]
            case Sum(terms):
                return self._bounded(sum((self._value(term, point) for term in terms), self.context.mpf(0)))
            case Product(factors):
                product = self.context.mpf(1)
                for factor in factors:
                    product *= self._value(factor, point)
                return self._bounded(product)
            case Power(base, exponent):
                return self._bounded(self._power(self._value(base, point), exponent, point))
            case Call(name, arguments):
                return self._bounded(self._call(name, [self._value(argument, point) for argument in arguments]))
        raise UndefinedError

    def _bounded(self, value: Any) -> Any:
        """Return a value unless it is infinite, none at all, or enormous; a real one as such."""
        if value and not -_MAX_BITS < self.context.mag(value) < _MAX_BITS:
            raise UndefinedError
        if not self.is_real(value) and not value.imag:
            return value.real
        return value

    def _power(self, base: Any, exponent: Scalar, point: Point) -> Any:
        context = self.context
        exact = constant(exponent)
        power = self._value(exponent, point) if exact is None else self.number(exact)
        if not base:
            if self.is_real(power) and power > 0:
                return base
            if not power:
                return context.mpf(1)
            raise UndefinedError
        if abs(power) * abs(context.mag(base)) > _MAX_BITS:
            raise UndefinedError
        if exact is not None and exact.denominator == 1:
            return base ** int(exact)
        if exact is not None and self.is_real(base) and base < 0 and exact.denominator % 2:
            root = context.exp(power * context.log(-base))
            return -root if exact.numerator % 2 else root
        if exact == Fraction(1, 2):
            return context.sqrt(base)
        return context.exp(power * context.log(base))

    def _call(self, name: str, arguments: list[Any]) -> Any:
        context, argument = self.context, arguments[0]
        if name == "abs":
            return abs(argument)
        if name in ("log", "ln"):
            base = arguments[1] if len(arguments) > 1 else context.mpf(10)
            return context.log(argument) if name == "ln" else context.log(argument) / context.log(base)
        if name in self.functions:
            if abs(argument) > _MAX_ARGUMENT and not name.startswith("arc"):
                raise UndefinedError
            return self.functions[name](argument)
        if not all(self.is_real(value) and abs(value) <= _MAX_ARGUMENT for value in arguments):
            raise UndefinedError
        if name in ("floor", "ceil"):
            nearest = context.nint(argument)
            if abs(argument - nearest) < self.number(_DIFFERENT):
                return nearest  # but for rounding it is a whole number
            return context.floor(argument) if name == "floor" else context.ceil(argument)
        if name == "factorial":
            return context.factorial(argument)
        if name == "binomial":
            return context.binomial(*arguments)
        raise UndefinedError
