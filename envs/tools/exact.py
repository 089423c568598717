"""Arithmetic of the calculator: exact rationals, irrational roots, and a bound on every size.

Operands never exceed :data:`MAX_DIGITS` digits, so one sum, product or quotient is always cheap; what can
explode (powers, exponents, digits to round to) is measured *before* it is computed.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TypeAlias

from trajgym.envs.tools.approximate import Approximate, of
from trajgym.errors import TrajgymError

__all__ = [
    "MAX_DIGITS",
    "MAX_EXPONENT",
    "CalculatorError",
    "Number",
    "absolute",
    "add",
    "blurred",
    "bounded",
    "ceiling",
    "divide",
    "floor",
    "floor_divide",
    "largest",
    "multiply",
    "negate",
    "power",
    "remainder",
    "round_half_away",
    "smallest",
    "square_root",
    "subtract",
    "too_large",
]

Number: TypeAlias = int | Fraction | Approximate

MAX_DIGITS = 1000
MAX_EXPONENT = 10_000

_LIMIT = 10**MAX_DIGITS
_SAFE_BITS = _LIMIT.bit_length() - 1  # fewer bits than this: certainly within MAX_DIGITS


class CalculatorError(TrajgymError):
    """An expression that has no value here.

    Args:
        kind: ``"wrong_type"``, ``"too_long"``, ``"empty"``, ``"syntax_error"``, ``"equation_not_expression"``,
            ``"too_deep"``, ``"unknown_name"``, ``"division_by_zero"``, ``"domain_error"`` or ``"too_large"``.
        message: What the writer of the expression has to change.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return self.message


def too_large() -> CalculatorError:
    """Return the error for a number of too many digits."""
    return CalculatorError(
        "too_large", f"A number has more than {MAX_DIGITS} digits. Use smaller numbers or exponents."
    )


def _division_by_zero() -> CalculatorError:
    return CalculatorError("division_by_zero", "Division by zero. Check the divisor: it must not be 0.")


def blurred() -> CalculatorError:
    """Return the error for an irrational number whose last needed digit is uncertain."""
    return CalculatorError(
        "too_large", "An irrational number is too large to be known to the digit. Round or shorten it first."
    )


def bounded(number: Number) -> Number:
    """Return ``number`` in its simplest form.

    Raises:
        CalculatorError: ``too_large`` when its numerator, its denominator or its value passes the limit.
    """
    if isinstance(number, int):
        if number.bit_length() > _SAFE_BITS and abs(number) >= _LIMIT:
            raise too_large()
        return number
    if isinstance(number, Fraction):
        bounded(number.numerator)
        bounded(number.denominator)
        return number.numerator if number.denominator == 1 else number
    if not -MAX_DIGITS <= number.exponent < MAX_DIGITS:
        raise too_large()
    return number


def add(a: Number, b: Number) -> Number:
    """Return ``a + b``."""
    return a + b


def subtract(a: Number, b: Number) -> Number:
    """Return ``a - b``."""
    return a - b


def multiply(a: Number, b: Number) -> Number:
    """Return ``a * b``."""
    return 0 if a == 0 or b == 0 else a * b


def negate(a: Number) -> Number:
    """Return ``-a``."""
    return -a


def absolute(a: Number) -> Number:
    """Return ``a`` without its sign."""
    return -a if _sign(a) < 0 else a


def divide(a: Number, b: Number) -> Number:
    """Return ``a / b``.

    Raises:
        CalculatorError: ``division_by_zero``.
    """
    if b == 0:
        raise _division_by_zero()
    if isinstance(a, int) and isinstance(b, int):
        quotient, rest = divmod(a, b)
        return Fraction(a, b) if rest else quotient
    return 0 if a == 0 else (Fraction(a) if isinstance(a, int) else a) / b


def floor(a: Number) -> int:
    """Return the largest integer that is not above ``a``."""
    if not isinstance(a, Approximate):
        return a.numerator // a.denominator
    if a.radius > 0.1:
        raise blurred()
    return a.floor()


def ceiling(a: Number) -> int:
    """Return the smallest integer that is not below ``a``."""
    return -floor(-a)


def floor_divide(a: Number, b: Number) -> int:
    """Return ``floor(a / b)``, as Python's ``//``."""
    if b == 0:
        raise _division_by_zero()
    if isinstance(a, Approximate) or isinstance(b, Approximate):
        return floor(divide(a, b))
    return (a.numerator * b.denominator) // (a.denominator * b.numerator)


def remainder(a: Number, b: Number) -> Number:
    """Return ``a - b * floor(a / b)``, which has the sign of ``b``, as Python's ``%``."""
    return a - multiply(b, floor_divide(a, b))


def power(base: Number, exponent: Number) -> Number:
    """Return ``base ** exponent``; exact whenever the result is rational and both arguments are.

    Raises:
        CalculatorError: ``too_large``, ``division_by_zero`` for a negative power of zero, ``domain_error``
            for a fractional power of a negative number.
    """
    if _sign(absolute(exponent) - MAX_EXPONENT) > 0:
        raise CalculatorError("too_large", f"An exponent is above {MAX_EXPONENT}. Use a smaller exponent.")
    if base == 0:
        if _sign(exponent) < 0:
            raise _division_by_zero()
        return 1 if exponent == 0 else 0
    if isinstance(exponent, int):
        return _whole_power(base, exponent)
    if _sign(base) < 0:
        raise CalculatorError(
            "domain_error",
            "A negative number has no real fractional power. Make the base positive or the exponent whole.",
        )
    if not isinstance(base, Approximate) and isinstance(exponent, Fraction):
        root = _exact_root(base, exponent.denominator)
        if root is not None:
            return _whole_power(root, exponent.numerator)
    about = of(base)
    _check_magnitude(about, float(of(exponent).value))
    return about.power(of(exponent))


def square_root(a: Number) -> Number:
    """Return the square root, exactly if it is rational.

    Raises:
        CalculatorError: ``domain_error`` for a negative number.
    """
    if a == 0:
        return 0
    if _sign(a) < 0:
        raise CalculatorError(
            "domain_error", "A negative number has no real square root. Check the sign inside sqrt( )."
        )
    root = None if isinstance(a, Approximate) else _exact_root(a, 2)
    return of(a).sqrt() if root is None else root


def round_half_away(a: Number, places: Number = 0) -> Number:
    """Round to ``places`` decimals (negative: tens, hundreds, …); a half goes away from zero.

    Raises:
        CalculatorError: ``domain_error`` when ``places`` is not whole, ``too_large`` when it passes the limit.
    """
    if not isinstance(places, int):
        raise CalculatorError("domain_error", "The second argument of round( ) must be a whole number of decimals.")
    if abs(places) > MAX_DIGITS:
        raise CalculatorError("too_large", f"round( ) takes at most {MAX_DIGITS} decimals. Use fewer.")
    unit = Fraction(1, 10**places) if places >= 0 else 10**-places
    steps = floor(divide(absolute(a), unit) + Fraction(1, 2))
    return steps * unit * _sign(a)


def smallest(*numbers: Number) -> Number:
    """Return the least of the numbers."""
    least = numbers[0]
    for number in numbers[1:]:
        if _sign(number - least) < 0:
            least = number
    return least


def largest(*numbers: Number) -> Number:
    """Return the greatest of the numbers."""
    return -smallest(*(-number for number in numbers))


def _sign(a: Number) -> int:
    if isinstance(a, Approximate):
        return a.sign
    return (a > 0) - (a < 0)


def _whole_power(base: Number, exponent: int) -> Number:
    if exponent == 0 or base == 1:
        return 1
    _check_magnitude(base, exponent)
    if isinstance(base, Approximate):
        return base.power(exponent)
    return Fraction(base) ** exponent


def _check_magnitude(base: Number, exponent: float) -> None:
    """Refuse a power whose numerator, denominator or value would pass the limit by far."""
    if isinstance(base, Approximate):
        size = abs(base.exponent + 0.5) - 0.5  # no more than |log10|
    else:
        size = max(math.log10(abs(base.numerator)), math.log10(base.denominator))
    if size * abs(exponent) > MAX_DIGITS + 1:
        raise too_large()


def _exact_root(a: int | Fraction, degree: int) -> Number | None:
    """Return the positive ``degree``-th root of a positive rational if it is rational."""
    above = _whole_root(a.numerator, degree)
    below = _whole_root(a.denominator, degree) if above is not None else None
    return None if above is None or below is None else bounded(Fraction(above, below))


def _whole_root(n: int, degree: int) -> int | None:
    if n == 1:
        return 1
    if degree == 2:
        root = math.isqrt(n)
    elif degree >= n.bit_length():
        return None  # the root lies between 1 and 2
    else:
        root = _floor_root(n, degree)
    return root if root**degree == n else None


def _floor_root(n: int, degree: int) -> int:
    # Newton's method from above, started with the 50 leading bits of the root.
    bits, rest = divmod(math.log2(n) / degree * (1 + 1e-14) + 1e-14, 1)
    shift = max(int(bits) - 50, 0)
    root = (int(2 ** (rest + bits - shift)) + 1) << shift
    while True:
        better = ((degree - 1) * root + n // root ** (degree - 1)) // degree
        if better >= root:
            return root
        root = better
