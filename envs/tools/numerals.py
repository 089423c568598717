"""How the calculator reads and writes one number."""

from __future__ import annotations

import math
from fractions import Fraction

from trajgym.envs.tools.approximate import Approximate
from trajgym.envs.tools.exact import MAX_DIGITS, MAX_EXPONENT, Number, blurred, bounded, too_large

__all__ = ["read_number", "write_number"]

_VULGAR = {"½": Fraction(1, 2), "¼": Fraction(1, 4), "¾": Fraction(3, 4)}


def read_number(literal: str) -> Number:
    """Read ``12``, ``1,200``, ``1_000``, ``.5``, ``1.5e3``, ``½`` or ``2½`` (ASCII digits).

    Raises:
        CalculatorError: ``too_large``, decided from the length of the literal and its exponent.
    """
    if literal.isdecimal():
        return bounded(int(literal))
    if literal[-1] in _VULGAR:
        return bounded(int(_plain(literal[:-1]) or 0) + _VULGAR[literal[-1]])
    mantissa, _, exponent = _plain(literal).lower().partition("e")
    whole, _, decimals = mantissa.partition(".")
    digits = int(whole + decimals)
    # Leading zeros could spell a small exponent with a thousand digits; int() of that is still quick.
    scale = int(exponent or 0)
    if abs(scale) > MAX_EXPONENT:
        raise too_large()
    scale -= len(decimals)
    if digits == 0:
        return 0
    # A literal has at most MAX_DIGITS digits, so only that many powers of ten can cancel.
    if not -2 * MAX_DIGITS <= scale <= MAX_DIGITS:
        raise too_large()
    return bounded(digits * 10**scale if scale >= 0 else Fraction(digits, 10**-scale))


def _plain(literal: str) -> str:
    return literal.replace(",", "").replace("_", "").strip()


def write_number(number: Number) -> str:
    """Write an integer, a finite decimal without trailing zeros, else ``p/q``; irrationals to 16 digits.

    Raises:
        CalculatorError: ``too_large`` when the text would have too many digits, or too few certain ones.
    """
    if isinstance(number, int):
        return str(number)
    if isinstance(number, Approximate):
        if number.relative.adjusted() >= -13:
            raise blurred()
        return str(number)
    denominator = number.denominator
    twos = (denominator & -denominator).bit_length() - 1
    odd = denominator >> twos
    fives = round(math.log(odd, 5))
    if 5**fives != odd:
        return f"{number.numerator}/{denominator}"
    places = max(twos, fives)
    digits = bounded(abs(number.numerator) * 10**places // denominator)
    text = str(digits).rjust(places + 1, "0")
    return f"{'-' if number < 0 else ''}{text[:-places]}.{text[-places:]}"
