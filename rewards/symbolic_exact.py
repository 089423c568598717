"""The exact value of a formula that is a rational number.

Sizes are checked before anything is computed, so nothing here takes long, whatever the formula says.

>>> constant(Product((Number(Fraction(1, 2)), Number(Fraction(3)))))
Fraction(3, 2)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from trajgym.rewards.expression_tree import Call, Node, Number, Power, Product, Sum
from trajgym.rewards.numbers import MAX_DIGITS

__all__ = ["EXACT_CALLS", "UndefinedError", "constant", "power"]

_MAX_BITS = int(MAX_DIGITS * math.log2(10))  # of a numerator or a denominator
_MAX_FACTORIAL = 400  # below 1,000 digits
_MAX_CHOICES = 3_000  # binomial(n, k) has at most n bits


class UndefinedError(Exception):
    """The formula has no value, or one that is too large to be an answer."""


def constant(node: Node) -> Fraction | None:
    """Return the exact value of a formula that is a rational number; ``None`` when it is something else.

    Raises:
        UndefinedError: When it divides by zero, or has more than 1,000 digits.
    """
    match node:
        case Number(value):
            return value
        case Sum(terms):
            values = _constants(terms)
            return None if values is None else _checked(sum(values, Fraction(0)))
        case Product(factors):
            values = _constants(factors)
            product = Fraction(1)
            for value in values or ():
                product = _checked(product * value)
            return None if values is None else product
        case Power(base, exponent):
            values = _constants((base, exponent))
            return None if values is None else power(values[0], values[1])
        case Call(name, arguments) if name in EXACT_CALLS:
            values = _constants(arguments)
            return None if values is None else EXACT_CALLS[name](*values)
    return None


def power(base: Fraction, exponent: Fraction, most_bits: int = _MAX_BITS) -> Fraction | None:
    """Return ``base ** exponent``; ``None`` when the exponent is no whole number.

    Args:
        base: Any rational.
        exponent: Any rational.
        most_bits: How large numerator and denominator may become.

    Raises:
        UndefinedError: When zero is divided by, or the result is larger.
    """
    if exponent.denominator != 1:
        return None
    if not base:
        if exponent < 0:
            raise UndefinedError
        return Fraction(not exponent)
    if abs(base) == 1:
        return base ** (int(exponent) % 2)  # of an exponent of any size
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if (bits - 1) * abs(exponent) > most_bits:
        raise UndefinedError
    return _checked(base ** int(exponent), most_bits)


def _constants(nodes: tuple[Node, ...]) -> list[Fraction] | None:
    values = []
    for node in nodes:
        value = constant(node)
        if value is None:
            return None
        values.append(value)
    return values


def _checked(value: Fraction, most_bits: int = _MAX_BITS) -> Fraction:
    if value.numerator.bit_length() > most_bits or value.denominator.bit_length() > most_bits:
        raise UndefinedError
    return value


def _factorial(value: Fraction) -> Fraction | None:
    if value.denominator != 1:
        return None
    if not 0 <= value <= _MAX_FACTORIAL:
        raise UndefinedError
    return Fraction(math.factorial(int(value)))


def _binomial(n: Fraction, k: Fraction) -> Fraction | None:
    if n.denominator != 1 or k.denominator != 1:
        return None
    if not (0 <= n <= _MAX_CHOICES and 0 <= k <= _MAX_CHOICES):
        raise UndefinedError
    return Fraction(math.comb(int(n), int(k)))


EXACT_CALLS: Mapping[str, Callable[..., Fraction | None]] = {
    "abs": abs,
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
    "factorial": _factorial,
    "binomial": _binomial,
}
"""Functions of rationals whose value is a rational, ``None`` for an argument where it is not."""
