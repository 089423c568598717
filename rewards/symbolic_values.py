"""The value of a formula at a point: exact where it can be, else to as many digits as a comparison needs.

Besides its number, a value carries how close to zero it can be without being zero. For sums, products, quotients and
roots of whole numbers that is proved: with ``bits`` the size of the whole numbers it is made of and ``degree`` the
product of the indices of its different roots, a value that is not zero is at least ``2 ** -(bits * degree)``. The value
of a function such as ``sin`` is taken for a number three times as long as the function's argument: near-coincidences
like ``sin(x) = x - x^3/6`` are of third order.

Source: Burnikel, C., Fleischer, R., Mehlhorn, K., Schirra, S. (2000), A strong and easily computable separation bound
for arithmetic expressions involving radicals, Algorithmica 27.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from trajgym.errors import ConfigError
from trajgym.rewards.expression_tree import Call, Constant, Node, Number, Power, Product, Scalar, Sum, Symbol
from trajgym.rewards.symbolic_exact import EXACT_CALLS, UndefinedError, power

__all__ = ["Evaluator", "Point", "Value"]

_MAX_ARGUMENT = 10**6  # of functions that grow, or that turn around: the work grows with its size
_MAX_EXACT_BITS = 40_000  # of an exact value
_MAX_INDEX = 100  # of a root; beyond it a power is a function of its exponent
_MAX_RADICAND_BITS = 1_000
_SMALL_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)
_MAX_BITS = 4_000_000  # of any other: its binary exponent
_MAX_GAMMA_PRECISION = 600  # bits; the work for a factorial between whole numbers explodes with it
_ORDER = 3  # of the near-coincidences of a function

Point = Mapping[str, Fraction]


class Value(NamedTuple):
    """The value of a formula at a point.

    Args:
        number: A :class:`~fractions.Fraction` where it is exact, else mpmath's ``mpf`` or ``mpc``.
        bits: How long the whole numbers are that it is made of.
        roots: The different roots it is made of: their indices and what stands under them.
    """

    number: Any
    bits: float
    roots: frozenset[tuple[int, Any]] = frozenset()


class Evaluator:
    """Values of formulas to a chosen precision.

    It has a context of mpmath's to itself: the shared one's precision is everybody's to change.

    Raises:
        ConfigError: When mpmath is not installed.
    """

    def __init__(self) -> None:
        try:
            from mpmath import MPContext
        except ImportError as error:
            raise ConfigError(
                "Comparing formulas needs mpmath, which is not installed: pip install 'trajgym[math]'."
            ) from error
        self.context = context = MPContext()
        self._smallest = -math.inf  # binary exponent of what is not taken for zero
        self.functions: dict[str, Callable[..., Any]] = {
            **{name: getattr(context, name) for name in ("sin", "cos", "tan", "cot", "sec", "csc")},
            **{name: getattr(context, name) for name in ("sinh", "cosh", "tanh", "ln")},
            **{f"arc{name}": getattr(context, f"a{name}") for name in ("sin", "cos", "tan")},
        }

    def value(self, node: Scalar, point: Point, precision: int, *, rough: bool = False) -> Value:
        """Return the value at a point.

        Args:
            node: The formula.
            point: A value for each of its variables.
            precision: Bits that are computed with. What is smaller than 2 to minus half of them counts as zero.
            rough: Whether they are too few for that: nothing counts as zero then but zero itself.

        Raises:
            UndefinedError: When there is none, or none of a bearable size.
        """
        self.context.prec = precision
        self._smallest = -math.inf if rough else -precision / 2
        try:
            return self._value(node, point)
        except (ArithmeticError, ValueError) as error:
            raise UndefinedError from error

    def real(self, number: Any) -> Any:
        """Return a number as one of mpmath's."""
        return self.context.mpf(number.numerator) / number.denominator if isinstance(number, Fraction) else number

    def vanishes(self, number: Any) -> bool:
        """Whether a number is zero, as far as can be told with the current precision."""
        if isinstance(number, Fraction):
            return not number
        return bool(not number or self.context.mag(number) < self._smallest)

    def _value(self, node: Node, point: Point) -> Value:
        match node:
            case Number(value):
                return self._exact(value)
            case Symbol(name):
                return self._exact(point[name])
            case Constant("i"):
                return Value(self.context.mpc(0, 1), 1, frozenset([(2, -1)]))
            case Constant(name) if name in ("pi", "e"):
                return Value(+getattr(self.context, name), 2)
            case Sum(terms):
                return self._folded([self._value(term, point) for term in terms], adding=True)
            case Product(factors):
                return self._folded([self._value(factor, point) for factor in factors], adding=False)
            case Power(base, exponent):
                return self._power(self._value(base, point), self._value(exponent, point))
            case Call(name, arguments):
                return self._call(name, [self._value(argument, point) for argument in arguments])
        raise UndefinedError

    def _exact(self, value: Fraction) -> Value:
        bits = max(value.numerator.bit_length(), value.denominator.bit_length())
        if bits > _MAX_EXACT_BITS:
            raise UndefinedError
        return Value(value, bits)

    def _inexact(self, number: Any, bits: float, *made_of: Value, root: tuple[int, Any] | None = None) -> Value:
        """Return a value unless it is infinite, none at all, or enormous; a real one as such."""
        if number and not -_MAX_BITS < self.context.mag(number) < _MAX_BITS:
            raise UndefinedError
        if isinstance(number, self.context.mpc) and self.vanishes(number.imag):
            number = number.real
        roots = frozenset().union(*(value.roots for value in made_of), [] if root is None else [root])
        return Value(number, bits, roots)

    def _folded(self, values: list[Value], *, adding: bool) -> Value:
        """Add or multiply values, the exact ones exactly."""
        exact = Fraction(not adding)
        number: Any = None
        others = [value for value in values if not isinstance(value.number, Fraction)]
        for value in values:
            if isinstance(value.number, Fraction):
                exact = self._exact(exact + value.number if adding else exact * value.number).number
        for value in others:
            number = value.number if number is None else number + value.number if adding else number * value.number
        if number is None or (not adding and not exact):
            return self._exact(exact)
        number = number + self.real(exact) if adding else number * self.real(exact)
        bits = self._exact(exact).bits + sum(value.bits for value in others) + (len(values) if adding else 0)
        return self._inexact(number, bits, *others)

    def _power(self, base: Value, exponent: Value) -> Value:
        context, exact = self.context, exponent.number
        if isinstance(exact, Fraction):
            if isinstance(base.number, Fraction):
                value = _rational_power(base.number, exact)
                if value is not None:
                    return self._exact(value)
            if not exact:
                return self._exact(Fraction(1))
            if self.vanishes(base.number):
                if exact < 0:
                    raise UndefinedError
                return base
            number = self.real(base.number)
            if abs(exact) * abs(context.mag(number)) > _MAX_BITS:
                raise UndefinedError
            bits, index = abs(exact.numerator) * base.bits, exact.denominator
            if index == 1:
                return self._inexact(number ** int(exact), bits, base)
            if index <= _MAX_INDEX:
                root = context.sqrt(number) if index == 2 else self._root(number, index)
                return self._inexact(root**exact.numerator, bits, base, root=(index, _radicand(base.number, index)))
            if index % 2 and isinstance(number, context.mpf) and number < 0:
                raise UndefinedError  # a real root at one point, none at its neighbours
        if self.vanishes(base.number):
            raise UndefinedError
        raised = self.real(exact) * context.log(self.real(base.number))
        if abs(raised) > _MAX_BITS:
            raise UndefinedError
        number = context.exp(raised)
        return self._inexact(number, self._length(number, base, exponent), base, exponent)

    def _root(self, number: Any, index: int) -> Any:
        """Return a root: the real one where there is one, else the principal one."""
        context = self.context
        if index % 2 and isinstance(number, context.mpf) and number < 0:
            return -context.exp(context.log(-number) / index)
        return context.exp(context.log(number) / index)

    def _length(self, number: Any, *arguments: Value) -> float:
        """Return how long a function's value is taken to be."""
        size = abs(int(self.context.mag(number))) if number else 0
        return _ORDER * sum(argument.bits for argument in arguments) + size + 8

    def _call(self, name: str, arguments: list[Value]) -> Value:
        context = self.context
        if name in EXACT_CALLS:
            return self._stepping(name, arguments)
        argument = context.mpf(0) if self.vanishes(arguments[0].number) else self.real(arguments[0].number)
        if name == "log":
            base = arguments[1].number if len(arguments) > 1 else Fraction(10)
            number = context.log(argument) / context.log(self.real(base))
        elif name not in self.functions or (abs(argument) > _MAX_ARGUMENT and not name.startswith(("arc", "ln"))):
            raise UndefinedError
        else:
            number = self.functions[name](argument)
        bits = self._length(number, *arguments)
        if name in ("tanh", "sinh", "cosh"):
            bits += 3 * float(abs(argument))  # exponentials hide in them
        return self._inexact(number, bits, *arguments)

    def _stepping(self, name: str, arguments: list[Value]) -> Value:
        """Return the value of a function that has exact values."""
        context = self.context
        if all(isinstance(argument.number, Fraction) for argument in arguments):
            exact = EXACT_CALLS[name](*(argument.number for argument in arguments))
            if exact is not None:
                return self._exact(exact)
        numbers = [self.real(argument.number) for argument in arguments]
        if name == "abs":
            (argument,) = arguments
            if isinstance(numbers[0], context.mpf):
                return argument._replace(number=abs(numbers[0]))
            # The root of the sum of two squares.
            return self._inexact(abs(numbers[0]), 2 * argument.bits, argument, root=(2, numbers[0]))
        if not all(isinstance(number, context.mpf) and abs(number) <= _MAX_ARGUMENT for number in numbers):
            raise UndefinedError
        if name in ("floor", "ceil"):
            nearest = context.nint(numbers[0])
            if not self.vanishes(numbers[0] - nearest):
                nearest = context.floor(numbers[0]) if name == "floor" else context.ceil(numbers[0])
            return self._exact(Fraction(int(nearest)))
        if context.prec > _MAX_GAMMA_PRECISION:
            raise UndefinedError
        number = context.factorial(numbers[0]) if name == "factorial" else context.binomial(*numbers)
        return self._inexact(number, self._length(number, *arguments), *arguments)


def _radicand(number: Any, index: int) -> Any:
    """Return what stands under a root without small factors that can be drawn out: 2 for the square root of 8."""
    if not isinstance(number, Fraction) or number.denominator.bit_length() * index > _MAX_RADICAND_BITS:
        return number
    whole: int = number.numerator * number.denominator ** (index - 1)
    if whole.bit_length() <= _MAX_RADICAND_BITS:
        for prime in _SMALL_PRIMES:
            while not whole % prime**index:
                whole //= prime**index
    return whole


def _rational_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    """Return a power of a rational where it is one."""
    if exponent.denominator == 1:
        return power(base, exponent, _MAX_EXACT_BITS)
    index = exponent.denominator
    if not base or index > _MAX_INDEX or (base < 0 and index % 2 == 0):
        return None
    from sympy import integer_nthroot

    top, whole = integer_nthroot(abs(base.numerator), index)
    low, also = integer_nthroot(base.denominator, index)
    if not (whole and also):
        return None
    root = Fraction(int(top), int(low))
    return power(-root if base < 0 else root, Fraction(exponent.numerator), _MAX_EXACT_BITS)
