"""The exact half of comparing formulas: rationals, and quotients of polynomials.

Sizes are checked before anything is computed, so nothing here takes long, whatever the formula says.

>>> constant(Product((Number(Fraction(1, 2)), Number(Fraction(3)))))
Fraction(3, 2)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from trajgym.errors import ConfigError
from trajgym.rewards.expression_tree import Call, Node, Number, Power, Product, Scalar, Sum, Symbol, children, symbols
from trajgym.rewards.numbers import MAX_DIGITS

__all__ = ["UndefinedError", "constant", "same_function"]

_MAX_BITS = int(MAX_DIGITS * math.log2(10))  # of a numerator or a denominator
_MAX_FACTORIAL = 400  # below 1,000 digits
_MAX_CHOICES = 3_000  # binomial(n, k) has at most n bits
_MAX_POWER = 64  # of a polynomial
_MAX_COEFFICIENT_BITS = 100  # of a number in a polynomial
_MAX_TERMS = 2_000  # products of terms that one multiplication may take


class UndefinedError(Exception):
    """The formula has no value, or one that is too large to be an answer."""


class _OutOfReachError(Exception):
    """The formula is no quotient of polynomials, or one that is too large to be written out."""


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
            return None if values is None else _power(*values)
        case Call(name, arguments) if name in _EXACT:
            values = _constants(arguments)
            return None if values is None else _EXACT[name](*values)
    return None


def same_function(a: Scalar, b: Scalar) -> bool | None:
    """Say whether two formulas are the same quotient of polynomials, exactly.

    Quotients are the same when they agree wherever both are defined: ``(x^2 - 1)/(x - 1)`` is ``x + 1``.

    Returns:
        The answer, or ``None`` when one of them is no quotient of polynomials, or a very large one.

    Raises:
        UndefinedError: When a denominator is zero everywhere.
        ConfigError: When sympy is not installed.
    """
    names = sorted(symbols(a) | symbols(b))
    try:
        _check_rational(a)
        _check_rational(b)
        generators = _ring(names)
        (top, low), (other_top, other_low) = _quotient(a, generators), _quotient(b, generators)
        return bool(_times(top, other_low) == _times(other_top, low))
    except _OutOfReachError:
        return None


def _constants(nodes: tuple[Scalar, ...]) -> list[Fraction] | None:
    values = []
    for node in nodes:
        value = constant(node)
        if value is None:
            return None
        values.append(value)
    return values


def _checked(value: Fraction) -> Fraction:
    if value.numerator.bit_length() > _MAX_BITS or value.denominator.bit_length() > _MAX_BITS:
        raise UndefinedError
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator != 1:
        return None
    if not base:
        if exponent < 0:
            raise UndefinedError
        return Fraction(not exponent)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) != 1 and (bits - 1) * abs(exponent) > _MAX_BITS:
        raise UndefinedError
    # An even power of -1 of any size.
    return _checked(base ** (int(exponent) % 2 if abs(base) == 1 else int(exponent)))


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


_EXACT: Mapping[str, Callable[..., Fraction | None]] = {
    "abs": abs,
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
    "factorial": _factorial,
    "binomial": _binomial,
}


# Polynomials, whose arithmetic is sympy's: sparse, exact, made by calls from our tree. -------------------------------


def _ring(names: list[str]) -> dict[str, Any]:
    """Return the variables as polynomials with rational coefficients; ``""`` stands for 1."""
    try:
        from sympy import Symbol as SympySymbol
        from sympy.polys.domains import QQ
        from sympy.polys.orderings import lex
        from sympy.polys.rings import PolyRing
    except ImportError as error:
        raise ConfigError(
            "Comparing formulas needs sympy, which is not installed: pip install 'trajgym[math]'."
        ) from error
    ring = PolyRing([SympySymbol(name) for name in names], QQ, lex)
    return {**dict(zip(names, ring.gens, strict=True)), "": ring.one}


def _check_rational(node: Node) -> None:
    """Refuse what is no quotient of polynomials before sympy is asked for."""
    match node:
        case Number(value):
            if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_COEFFICIENT_BITS:
                raise _OutOfReachError
        case Power(base, exponent):
            power = constant(exponent)
            if power is None or power.denominator != 1 or abs(power) > _MAX_POWER:
                raise _OutOfReachError
            _check_rational(base)
        case Sum() | Product():
            for part in children(node):
                _check_rational(part)
        case Symbol():
            pass
        case _:
            raise _OutOfReachError


def _quotient(node: Node, generators: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return numerator and denominator, not reduced."""
    one = generators[""]
    match node:
        case Number(value):
            return one * value.numerator, one * value.denominator
        case Symbol(name):
            return generators[name], one
        case Sum(terms):
            top, low = one * 0, one
            for term in terms:
                other_top, other_low = _quotient(term, generators)
                if other_low == low:
                    top = top + other_top
                else:
                    top = _times(top, other_low) + _times(other_top, low)
                    low = _times(low, other_low)
            return top, low
        case Product(factors):
            top, low = one, one
            for factor in factors:
                other_top, other_low = _quotient(factor, generators)
                top, low = _times(top, other_top), _times(low, other_low)
            return top, low
        case Power(base, exponent):
            power = constant(exponent)
            assert power is not None
            top, low = _quotient(base, generators)
            if power < 0:
                if not top:
                    raise UndefinedError
                top, low = low, top
            return _raised(top, abs(int(power)), one), _raised(low, abs(int(power)), one)
    raise _OutOfReachError


def _times(a: Any, b: Any) -> Any:
    if len(a) * len(b) > _MAX_TERMS:
        raise _OutOfReachError
    return a * b


def _raised(polynomial: Any, power: int, one: Any) -> Any:
    if len(polynomial) == 1:
        bits = max(abs(c.numerator | c.denominator).bit_length() for c in polynomial.coeffs())
        if bits * power > _MAX_BITS:
            raise _OutOfReachError
        return polynomial**power
    result = one
    for _ in range(power):
        result = _times(result, polynomial)
    return result
