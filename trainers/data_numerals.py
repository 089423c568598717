"""The numbers of a word problem: those that may be changed, and those that may not, as far as wording tells.

Some numbers stand in a problem without being written as one: "twice" is 2, and who speaks of weeks may mean 7. A value
that may come from the wording is *fixed*: wherever it stands, it is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from trajgym.rewards.numbers import spelled

__all__ = ["Numeral", "implied_values", "numerals", "refusal", "spelled_values", "written"]

_NUMERAL = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|\.\d+", re.ASCII)
_PLAIN = re.compile(r"[1-9]\d*|[1-9]\d{0,2}(?:,\d{3})+", re.ASCII)
_WORDS = re.compile(r"[a-z]+")
# A numeral that is part of something else: a fraction, a clock, a range, a code, an ordinal, a percentage.
_BEFORE = re.compile(r"[\w./:#\-–−'’]\Z")
_BEHIND = re.compile(
    r"[\w/:%°\-–−]|[.,]\d|['’]\w|\s*(?:%|percent|st\b|nd\b|rd\b|th\b|million|billion|thousand|hundred)"
)
_ARTICLE = re.compile(r"\b[Aa]n?\s+\$?\Z")  # "an 8" cannot become "an 9"
_YEARS = range(1500, 2101)
_REACH = 16  # characters beside a numeral that tell what it is

# What a problem that is not only about its numbers speaks of.
_REFUSALS = {
    "ages": r"\bage[sd]?\b|\bolder\b|\byounger\b|\byears?[- ]olds?\b|\bbirthdays?\b|\bborn\b",
    "clock times or dates": r"\d\s*[ap]\.?m\b|o['’]clock|\bnoon\b|\bmidnight\b|\d:\d\d|"
    r"\b(?:january|february|march|april|june|july|august|september|october|november|december)\s+\d",
    "rounding or remainders": r"\bround(?:ed|s|ing)?\b|\bnearest\b|\bremainder\b|\bwhole\b|\bfull\b",
    "bounds and choices": r"\b(?:at (?:least|most)|maximum|minimum|cheape(?:r|st)|best|whichever|exceeds?|limits?|"
    r"up to|enough|unless|no more than|or more|or less|capacity|(?:first|after|over|above|below) \d+)\b",
    "averages and chances": r"\b(?:averages?|mean|median|mode|probability|chances?|likely|ratios?|consecutive)\b",
    "a percentage as the answer": r"\bwhat (?:is the )?percent|\bpercentages? of\b|\bhow many percent",
    "comparisons": r"\b(?:most|majority|(?:more|less|fewer) than (?:half|a \w+))\b",
    "equations": r"\b[a-z]\s*=|\bequations?\b",
}
_REFUSED = {reason: re.compile(pattern, re.IGNORECASE) for reason, pattern in _REFUSALS.items()}

# Beginnings of words, and the values that they may bring along.
_IMPLIED = {
    "half|halv|twice|double|couple|pair|both|twin|bi|weekend": (2, 50),
    "third|thrice|triple|treble|tri": (3,),
    "quarter|fourth|quadruple": (4, 15, 25),
    "fifth|hand|finger|toe|foot|feet": (5, 10, 20),
    "sixth|seventh|eighth|ninth|tenth": (6, 7, 8, 9, 10),
    "week|day|dai|tomorrow|monday|tuesday|wednesday|thursday|friday|saturday|sunday|work": (
        *(2, 5, 6, 7, 8, 14, 24, 28, 30, 31, 52),
    ),
    "month|year|annual|season|centur|decade": (3, 4, 10, 12, 24, 28, 29, 30, 31, 36, 48, 52, 60, 100, 360, 365, 366),
    "hour|minute|second|clock|night": (12, 24, 60, 1440, 3600),
    "inch|foot|feet|yard|mile": (3, 12, 36, 5280, 1760),
    "ounce|pound|oz|lb|ton": (16, 32, 2000),
    "gallon|quart|pint|cup|spoon|teaspoon|tablespoon": (2, 3, 4, 8, 16, 32, 128),
    "dozen|egg|carton": (6, 12, 24, 36, 48, 60, 72, 84, 96, 120, 144),
    "score": (20,),
    "cent|penn|percent|dime|nickel|coin|dollar|change|discount|tax|tip|interest": (5, 10, 25, 100),
    "kilo|km|kg|meter|metre|centi|cm|mm|gram|liter|litre|ml|mg": (10, 100, 1000),
    "leg|spider|insect|octop|dog|cat|cow|chicken|duck|horse|sheep|goat|pig|animal|wheel|tire|car|bike|bicycle|vehicle|"
    "table|chair": (2, 3, 4, 6, 8),
    "square|rectang|side|perimeter|triang|edge|corner|cube|hexagon|pentagon|octagon|area|wall|fence": (
        2,
        3,
        4,
        5,
        6,
        8,
    ),
    "deck|card|dice|die|letter|alphabet|degree|angle|circle|compass": (6, 26, 52, 54, 90, 180, 360),
    "team|player|inning|basketball|football|baseball|soccer|pin": (5, 9, 10, 11),
}
_STEMS = [(tuple(stems.split("|")), values) for stems, values in _IMPLIED.items()]


class Numeral(NamedTuple):
    """A number in digits.

    Args:
        start: Index of its first character.
        end: Index behind its last character.
        value: Its value.
        plain: Whether it is a whole number on its own, so that another one could stand in its place.
        percent: Whether a percent sign or word follows.
    """

    start: int
    end: int
    value: Fraction
    plain: bool
    percent: bool


def numerals(text: str, *, working: bool = False) -> Iterator[Numeral]:
    """Yield the numbers in digits, from left to right.

    Args:
        text: The text.
        working: Whether the text shows calculations, so that signs beside a number are operators.
    """
    for match in _NUMERAL.finditer(text):
        before = text[max(0, match.start() - _REACH) : match.start()]
        behind = text[match.end() : match.end() + _REACH]
        if working:
            # An x between numbers multiplies; a hyphen or a slash between them subtracts or divides.
            before = re.sub(r"(?<=[\d\s)])[x*/+\-–−=(]\s*\Z", " ", before)
            behind = re.sub(r"\A\s*[x*/+\-–−=)](?=[\s\d$(<])", " ", behind)
        value = Fraction(match[0].replace(",", ""))
        plain = (
            bool(_PLAIN.fullmatch(match[0]))
            and not _BEFORE.search(before[-1:])
            and not _BEHIND.match(behind)
            and (working or not _ARTICLE.search(before))
            and (working or not (value in _YEARS and "," not in match[0] and before[-1:] != "$"))
        )
        yield Numeral(match.start(), match.end(), value, plain, bool(re.match(r"\s*(?:%|percent)", behind)))


def written(value: Fraction, like: str) -> str:
    """Return a whole number in digits, with commas between thousands where ``like`` has some or has no need of any."""
    return f"{int(value):,}" if "," in like else str(int(value))


def spelled_values(text: str) -> set[Fraction]:
    """Return the values of the numbers that stand in a text as words."""
    words = _WORDS.findall(text.casefold().replace("-", " "))
    found = set()
    for i in range(len(words)):
        for length in range(1, 6):
            value, used = spelled(words[i : i + length])
            if value is not None and used:
                found.add(value)
    return found


def implied_values(text: str) -> set[Fraction]:
    """Return the values that the wording of a text may bring along, numbers in words among them."""
    found = {Fraction(0), Fraction(1), *spelled_values(text)}
    for word in set(_WORDS.findall(text.casefold())):
        for stems, values in _STEMS:
            if word.startswith(stems):
                found.update(map(Fraction, values))
    if "%" in text:
        found.add(Fraction(100))
    return found


def refusal(text: str) -> str:
    """Return what a problem speaks of that ties its numbers in ways that no calculation shows; else nothing."""
    return next((reason for reason, pattern in _REFUSED.items() if pattern.search(text)), "")
