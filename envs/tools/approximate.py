"""Irrational numbers: a decimal and a bound on how wrong it is.

A root such as ``√2`` cannot be exact, but what is done with it must stay honest: ``√2·√2 − 2`` is zero and
``floor(√2·√2)`` is 2. So every irrational value carries a radius that is certain to cover the truth. A
result whose ball contains zero *is* zero here.
"""

from __future__ import annotations

from decimal import ROUND_DOWN, ROUND_UP, Context, Decimal
from fractions import Fraction

__all__ = ["DIGITS", "Approximate", "of"]

DIGITS = 40

_CONTEXT = Context(prec=DIGITS)
_UP = Context(prec=6, rounding=ROUND_UP)  # radii: few digits, never too small
_DOWN = Context(prec=6, rounding=ROUND_DOWN)
_SHOWN = Context(prec=16)
_ULP = Decimal(1).scaleb(1 - DIGITS)


class Approximate:
    """The truth lies within ``radius`` of ``value``, and is not zero.

    Args:
        value: The best decimal, :data:`DIGITS` significant digits.
        radius: Absolute error bound, smaller than ``abs(value)``.
    """

    __slots__ = ("radius", "value")

    def __init__(self, value: Decimal, radius: Decimal) -> None:
        self.value = value
        self.radius = radius

    def __add__(self, other: int | Fraction | Approximate) -> int | Approximate:
        other = of(other)
        value = _CONTEXT.add(self.value, other.value)
        return _settled(value, _UP.add(self.radius, other.radius))

    def __mul__(self, other: int | Fraction | Approximate) -> int | Approximate:
        other = of(other)
        value = _CONTEXT.multiply(self.value, other.value)
        radius = _UP.fma(abs(self.value), other.radius, _UP.multiply(_far(other), self.radius))
        return _settled(value, radius)

    __radd__ = __add__
    __rmul__ = __mul__

    def __sub__(self, other: int | Fraction | Approximate) -> int | Approximate:
        return self + -other

    def __rsub__(self, other: int | Fraction) -> int | Approximate:
        return -self + other

    def __truediv__(self, other: int | Fraction | Approximate) -> int | Approximate:
        return self * of(other).inverse()

    def __rtruediv__(self, other: int | Fraction) -> int | Approximate:
        return self.inverse() * other

    def __neg__(self) -> Approximate:
        return Approximate(self.value.copy_negate(), self.radius)

    def __abs__(self) -> Approximate:
        return Approximate(self.value.copy_abs(), self.radius)

    @property
    def sign(self) -> int:
        """1 or -1."""
        return -1 if self.value < 0 else 1

    @property
    def relative(self) -> Decimal:
        """Relative error bound."""
        return _UP.divide(self.radius, abs(self.value))

    @property
    def exponent(self) -> int:
        """Power of ten of the leading digit."""
        return self.value.adjusted()

    def inverse(self) -> Approximate:
        """Return ``1 / self``."""
        value = _CONTEXT.divide(Decimal(1), self.value)
        nearest = _DOWN.multiply(abs(self.value), _DOWN.subtract(abs(self.value), self.radius))
        return Approximate(value, _rounded(value, _UP.divide(self.radius, nearest)))

    def sqrt(self) -> Approximate:
        """Return the square root of a positive number."""
        value = _CONTEXT.sqrt(self.value)
        return Approximate(value, _rounded(value, _UP.divide(self.radius, value)))

    def power(self, exponent: int | Approximate) -> int | Approximate:
        """Return ``self ** exponent``; a negative base needs an ``int``.

        With ``p = b ln a``, the relative error of ``a**b = exp(p)`` is ``|b| δa + |p| δb`` to first order, where
        ``δ`` are relative errors; it is doubled here for the rest.
        """
        if isinstance(exponent, int):
            value = _CONTEXT.power(self.value, Decimal(exponent))
            relative = _UP.multiply(abs(Decimal(exponent)), self.relative)
        else:
            product = _CONTEXT.multiply(_CONTEXT.ln(self.value), exponent.value)
            value = _CONTEXT.exp(product)
            relative = _UP.multiply(abs(product), exponent.relative + 3 * _ULP)
            relative = _UP.fma(_far(exponent), self.relative, relative)
        return _settled(value, _UP.multiply(abs(value), _UP.fma(relative, Decimal(2), _ULP)))

    def floor(self) -> int:
        """Return the floor; an integer inside the ball counts as reached. The radius must be below 1/4."""
        nearest = int(self.value.to_integral_value())
        if abs(self.value - nearest) <= self.radius:
            return nearest
        return nearest if nearest <= self.value else nearest - 1

    def __str__(self) -> str:
        text = f"{_SHOWN.plus(self.value):f}"
        return text.rstrip("0").rstrip(".") if "." in text else text


def of(number: int | Fraction | Approximate) -> Approximate:
    """Return ``number`` as an :class:`Approximate`; an exact one gets the radius of its rounding."""
    if isinstance(number, Approximate):
        return number
    value = _CONTEXT.divide(Decimal(number.numerator), Decimal(number.denominator))
    return Approximate(value, _rounded(value, Decimal(0)))


def _rounded(value: Decimal, radius: Decimal) -> Decimal:
    """Add what rounding ``value`` may have cost."""
    return _UP.fma(abs(value), _ULP, radius)


def _settled(value: Decimal, radius: Decimal) -> int | Approximate:
    radius = _rounded(value, radius)
    return 0 if abs(value) <= radius else Approximate(value, radius)


def _far(number: Approximate) -> Decimal:
    return _UP.add(abs(number.value), number.radius)
