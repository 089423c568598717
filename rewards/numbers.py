"""Number shapes in running text: one numeral, its exact value or nothing.

A numeral that is written in an unusual or ambiguous way is *unreadable* (``value is None``); it is never
repaired and never skipped, so that ``1.000.000`` cannot turn into ``1`` or into ``0``.

>>> numeral_at("1,200.50 in all", 0).value
Fraction(2401, 2)
>>> numeral_at("1.234,56", 0)
Numeral(start=0, end=8, value=None)
>>> spelled(["one", "hundred", "and", "five", "clips"])
(Fraction(105, 1), 4)
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from trajgym.rewards.vocabulary import FRACTION_NAMES, ONES, SCALES, TENS

__all__ = ["MAX_DIGITS", "MAX_EXPONENT", "NUMERAL_START", "VULGAR", "Numeral", "numeral_at", "spelled"]

MAX_DIGITS = 1000  # digits of one numeral; more is a decoder running wild, and slow to convert
MAX_EXPONENT = 100  # largest power of ten, either sign

VULGAR = "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_SUFFIXES = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9}  # lower-case m is a metre
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")

# A regular expression for the first characters of a numeral, to be followed by `numeral_at`.
NUMERAL_START = rf"\d|(?<![\w.])\.\d|[{VULGAR}]|\\[cdt]?frac(?![A-Za-z])"

_PART = r"(?:\{{\s?(?P<{0}>[-−+]?\s?\d+(?:,\d{{3}})*)\s?\}}|(?P<{0}1>\d))"
_FRAC = r"\\[cdt]?frac\s?" + _PART.format("top") + r"\s?" + _PART.format("low")
_BODY = re.compile(
    rf"""
    (?P<never>0[xXoObB][0-9A-Fa-f]+)
  | (?P<hour>\d{{1,2}}):00(?![\d:])
  | {_FRAC}
  | (?P<bare>[{VULGAR}])
  | (?P<spaced>\d{{1,3}}(?:(?P<mark>[\x20\u00a0\u2007\u2009\u202f]|\\[,;:!\x20]|\{{,\}})\d{{3}}(?!\d))
        (?:(?P=mark)\d{{3}}(?!\d))*(?:\.\d+)?)
  | (?P<plain>\d+(?:[.,]+\d+)*|\.\d+)
    """,
    re.VERBOSE,
)
_TAIL = re.compile(
    rf"""
    [eE](?P<exponent>[-+]?\d+)(?![^\W_])
  | \s{{0,2}}(?:\\times|\\cdot|[×·⋅∗*xX])\s{{0,2}}10\s?(?:
        (?:\^|\*\*)\s?(?:\{{\s?(?P<braced>[-−+]?\d+)\s?\}}|(?P<power>[-−+]?\d+)) | (?P<raised>⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]+))
  | [ ]?[/⁄][ ]?(?P<over>\d+(?:,\d{{3}})*)
  | [ \u00a0]?(?P<vulgar>[{VULGAR}])
  | [ \u00a0]{{1,2}}(?P<above>\d+)[/⁄](?P<below>\d+)
  | \s{{0,2}}(?:{_FRAC})
  | (?P<suffix>[kKMB])(?![A-Za-z0-9_])
    """,
    re.VERBOSE,
)
# Digits that are glued to a numeral by a sign that no accepted shape has there: clocks, dates, versions.
_GLUED = re.compile(r"[.,:'’_/⁄]\d[\d.,:'’_/⁄]*")
_SHAPE = re.compile(r"(\d+|\d{1,3}(?:,\d{3})+)(\.\d+)?|(\.\d+)")


class Numeral(NamedTuple):
    """One numeral without its sign.

    Args:
        start: Index of its first character.
        end: Index behind its last character.
        value: Its exact value, or ``None`` when the shape is not one we read.
    """

    start: int
    end: int
    value: Fraction | None


def numeral_at(text: str, start: int, end: int | None = None) -> Numeral:
    """Read the numeral that begins at ``start``, where :data:`NUMERAL_START` matches.

    Args:
        text: The text around it.
        start: Index of its first character.
        end: Index to stop at; the end of the text by default.
    """
    stop = len(text) if end is None else end
    body = _BODY.match(text, start, stop)
    if body is None:  # a fraction command whose parts are not two whole numbers
        return Numeral(start, min(stop, start + 5), None)
    tail = _TAIL.match(text, body.end(), stop) if body["hour"] is None and body["never"] is None else None
    last = tail.end() if tail else body.end()
    glued = _GLUED.match(text, last, stop)
    if glued:
        return Numeral(start, glued.end(), None)
    return Numeral(start, last, _value(body, tail) if last - start <= 3 * MAX_DIGITS else None)


def spelled(words: Sequence[str]) -> tuple[Fraction | None, int]:
    """Read a number in words at the start of ``words`` (lower case, hyphens split).

    Returns:
        The value and how many words it takes: 0 when there is no number; ``None`` as the value when it goes on
        in a way that is not read (``two thirds``, ``three and a half``).
    """
    total, group, used, last, ceiling = 0, 0, 0, "", 10**15
    for index, word in enumerate(words):
        follower = words[index + 1] if index + 1 < len(words) else ""
        if word in ONES and (last in ("", "scale", "and") or (last == "tens" and 1 <= ONES[word] <= 9)):
            group, last = group + ONES[word], "ones"
        elif word in TENS and last in ("", "scale", "and"):
            group, last = group + TENS[word], "tens"
        elif word in ("a", "an") and not index and follower in SCALES:
            group, last = 1, "ones"
        elif word == "hundred" and last in ("ones", "tens") and 0 < group < 100:
            group, last = group * 100, "scale"
        elif SCALES.get(word, 0) >= 1000 and group and last and SCALES[word] < ceiling:
            total, group, ceiling, last = total + group * SCALES[word], 0, SCALES[word], "scale"
        elif word == "and" and last == "scale" and (follower in ONES or follower in TENS):
            last = "and"
        else:
            break
        used = index + 1
    rest = list(words[used : used + 3])
    rest = rest[2:] if rest[:2] == ["and", "a"] else rest
    if used and rest and rest[0] in FRACTION_NAMES:
        return None, used + 1
    return (Fraction(total + group), used) if used else (None, 0)


def _value(body: re.Match[str], tail: re.Match[str] | None) -> Fraction | None:
    if body["never"]:
        return None
    if body["hour"]:
        return Fraction(int(body["hour"])) if int(body["hour"]) <= 24 else None
    if body["bare"]:
        return _vulgar(body["bare"]) if tail is None else None
    if body["plain"] is None and body["spaced"] is None:
        return _frac(body) if tail is None else None
    number = _digits(body)
    if tail is None or number is None:
        return number
    if tail["suffix"]:
        return number * _SUFFIXES[tail["suffix"]]
    exponent = tail["exponent"] or tail["braced"] or tail["power"] or tail["raised"]
    if exponent:
        return _scaled(number, exponent.translate(_SUPERSCRIPTS).replace("−", "-"))
    if body["spaced"] or "." in body["plain"]:  # only whole numbers make a fraction or a mixed number
        return None
    if tail["over"]:
        return _ratio(number, tail["over"])
    if tail["above"]:
        part = _ratio(_whole(tail["above"]), tail["below"])
    else:
        part = _vulgar(tail["vulgar"]) if tail["vulgar"] else _frac(tail)
    return number + part if part is not None and 0 < part < 1 else None


def _digits(body: re.Match[str]) -> Fraction | None:
    plain: str | None = body["plain"]
    if plain is not None and plain.isdecimal():
        return _whole(plain)
    shape = _SHAPE.fullmatch(plain if plain is not None else body["spaced"].replace(body["mark"], ""))
    if shape is None:
        return None
    whole, decimals = (shape[1] or ""), (shape[2] or shape[3] or ".")[1:]
    grouped = "," in whole or body["spaced"]
    if (grouped and int(whole[0]) == 0) or len(whole) + len(decimals) > MAX_DIGITS:
        return None
    return Fraction(int(whole.replace(",", "") + decimals), 10 ** len(decimals))


def _whole(digits: str) -> Fraction | None:
    digits = digits.replace(",", "").replace(" ", "").replace("−", "-")
    return Fraction(int(digits)) if len(digits) <= MAX_DIGITS else None


def _ratio(top: Fraction | None, low: str) -> Fraction | None:
    divisor = _whole(low)
    return top / divisor if top is not None and divisor else None


def _frac(found: re.Match[str]) -> Fraction | None:
    return _ratio(_whole(found["top"] or found["top1"]), found["low"] or found["low1"])


def _vulgar(sign: str) -> Fraction:
    return Fraction(unicodedata.numeric(sign)).limit_denominator(10)


def _scaled(number: Fraction, exponent: str) -> Fraction | None:
    if len(exponent.lstrip("+-0")) > len(str(MAX_EXPONENT)) or abs(int(exponent)) > MAX_EXPONENT:
        return None
    return number * Fraction(10) ** int(exponent)
