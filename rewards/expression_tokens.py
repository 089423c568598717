r"""A mathematical answer as tokens, the same ones for LaTeX and for plain text.

Layout (``\left``, ``\,``, dollar signs) leaves no token. Where a sign is one nobody can read exactly, such as dots that
stand for more, the text is refused as a whole.

>>> [token.kind for token in tokens(r"\frac{1}{2} \cdot x^2")]
['frac', '{', 'number', '}', '{', 'number', '}', '*', 'symbol', '^', 'number']
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from trajgym.rewards.expression_signs import COMMANDS, FUNCTIONS, GREEK, INSIGNIFICANT, NAMES, SIGNS, TEXT_COMMANDS
from trajgym.rewards.numbers import MAX_DIGITS, MAX_EXPONENT, VULGAR
from trajgym.rewards.vocabulary import SHORT_UNITS, WORD_ANSWERS

__all__ = ["RefusedError", "Token", "tokens"]

_TOKEN = re.compile(
    rf"""
    (?P<layout>\s+ | [~$€£¥\u200b\u2061-\u2063] | \\[,;:!>\s()\[\]$€£]
        | \\(?:left|right)\s*\. | \\[Bb]igg?[lrm]?(?![A-Za-z])
        | \\(?:left|right|middle)(?=\s*[^\s|A-Za-z])
        | \\(?:{INSIGNIFICANT})(?![A-Za-z]))
  | (?P<lvert>\\left\s*\\?\|) | (?P<rvert>\\right\s*\\?\|)
  | (?P<text>\\(?:{TEXT_COMMANDS})\s*\{{(?P<inside>[^{{}}]*)\}})
  | (?P<begin>\\begin\s*\{{[pbBv]?(?:small)?matrix\}} | \\begin\s*\{{array\}}\s*\{{[clr|\s]*\}})
  | (?P<end>\\end\s*\{{(?:[pbBv]?(?:small)?matrix|array)\}})
  | (?P<degree>\^\s*\{{?\s*(?:\\circ(?![A-Za-z])|°)\s*\}}? | °)
  | (?P<row>\\\\)
  | (?P<percent>\\%)
  | (?P<brace>\\[{{}}])
  | (?P<bar>\\\|)
  | (?P<command>\\[A-Za-z]+)
  | (?P<repeating>(?P<fixed>\d*\.\d*)\\overline\s*\{{\s*(?P<repeated>\d+)\s*\}})
  | (?P<number>(?:\d{{1,3}}(?:(?:,\\!|\{{,\}}|\\,|,)\d{{3}})+(?!\d)(?:\.\d+)? | \d+(?:\.\d+)? | \.\d+)
        (?:[eE](?P<exponent>[-+]?\d+)(?![\w.]))?)
  | (?P<vulgar>[{VULGAR}])
  | (?P<raised>⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)
  | (?P<subscript>_\s*(?:\{{\s*(?P<braced>[A-Za-z0-9]{{1,8}})\s*\}}|(?P<single>[A-Za-z0-9])))
  | (?P<pair>\*\* | <= | >= | != | => )
  | (?P<letters>[A-Za-z]+ | [^\W\d_])
  | (?P<sign>[^\s])
    """,
    re.VERBOSE,
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_GROUP = re.compile(r",\\!|\{,\}|\\,|,")
_OPENING, _CLOSING = frozenset(["(", "[", "\\{"]), frozenset([")", "]", "\\}"])
_OPERAND_ENDS = frozenset(["number", "symbol", "constant", "words", "degree", "%", ")", "]", "}", "!"])


class RefusedError(Exception):
    """The text is no expression that can be read; the message says why."""


class Token(NamedTuple):
    r"""One token.

    Args:
        kind: ``number``, ``symbol``, ``constant``, ``function``, ``words``, ``subscript``, or the sign or construct
            itself in its plain form (``+``, ``frac``, ``sqrt``, ``\{`` for a set's brace, ``{`` for a group, …).
        text: The name of a symbol, a constant or a function; the words; else as written.
        value: Of a number.
        spaced: Whether a blank stands before it.
    """

    kind: str
    text: str
    value: Fraction = Fraction(0)
    spaced: bool = False


def tokens(text: str) -> list[Token]:
    """Return the tokens of an expression, in time proportional to its length.

    Raises:
        RefusedError: When a sign has no exact meaning here.
    """
    found: list[Token] = []
    depth, spaced = 0, False
    index = 0
    while index < len(text):
        match = _TOKEN.match(text, index)
        assert match is not None  # any character is a sign
        kind = match.lastgroup or ""
        index = match.end()
        if kind == "layout":
            spaced = spaced or match[0][-1].isspace()
            continue
        if kind == "number" and depth and "," in (separated := _separated(match)):
            # Between brackets a comma separates, as in (1,200), unless what follows is no number by itself.
            index = match.start() + separated.index(",")
            match = _TOKEN.match(text[:index], match.start())
            assert match is not None
        for token in _read(match, found):
            depth += (token.kind in _OPENING) - (token.kind in _CLOSING)
            found.append(token._replace(spaced=spaced))
            spaced = False
    return found


def _read(match: re.Match[str], before: list[Token]) -> Iterator[Token]:
    """Yield the tokens of one match; ``before`` holds those in front of it."""
    kind, text = match.lastgroup or "", match[0]
    if kind in ("lvert", "rvert", "begin", "end", "degree", "row"):
        yield Token(kind, text)
    elif kind == "percent":
        yield Token("%", text)
    elif kind == "brace":
        yield Token(text, text)
    elif kind == "bar":
        yield Token("|", text)
    elif kind == "text":
        yield from _text(match["inside"].strip(), before)
    elif kind == "command":
        yield _command(text[1:])
    elif kind in ("number", "repeating"):
        yield Token("number", text, _number(match))
    elif kind == "vulgar":
        yield Token("number", text, Fraction(unicodedata.numeric(text)).limit_denominator(10))
    elif kind == "raised":
        yield Token("^", "^")
        yield Token("number", text, Fraction(int(text.translate(_SUPERSCRIPTS))))
    elif kind == "subscript":
        yield Token("subscript", match["braced"] or match["single"])
    elif kind == "pair":
        yield Token({"**": "^", "=>": "="}.get(text, text), text)
    elif kind == "letters":
        yield from _letters(text, before)
    elif text in SIGNS:
        yield Token(SIGNS[text], NAMES.get(text, text))
    else:
        raise RefusedError(f"the sign {text!r} is not read")


def _command(name: str) -> Token:
    if name in COMMANDS:
        return Token(COMMANDS[name], NAMES.get(name, name))
    if name in GREEK:
        return Token("symbol", name.removeprefix("var"))
    raise RefusedError(f"the command \\{name} is not read")


def _text(inside: str, before: list[Token]) -> list[Token]:
    r"""Read the inside of ``\text{…}``: a name that is known, words, or a formula."""
    if inside in FUNCTIONS:
        return [Token(FUNCTIONS[inside], NAMES.get(inside, inside))]
    unit = before and before[-1].kind in _OPERAND_ENDS and re.match(r"[A-Za-z]", inside)
    if not unit and not re.search(r"[A-Za-z]{2}", inside):
        return tokens(inside)
    kind = "and" if inside.strip(" ,.") in ("and", "or") else "degree" if inside.startswith("degree") else "words"
    return [Token(kind, inside)]


def _letters(run: str, before: list[Token]) -> list[Token]:
    """Read letters without a command: a name that is known, a short product of variables, else words."""
    lower = run.lower()
    if run in SIGNS:  # π
        return [Token(SIGNS[run], NAMES[run])]
    if "Α" <= run <= "ω":
        case, name = unicodedata.name(run, "").split()[1::2][:2] or ("", "")
        return [Token("symbol", name.lower() if case == "SMALL" else name.capitalize())]
    if run in FUNCTIONS:
        return [Token(FUNCTIONS[run], NAMES.get(run, run))]
    if run in ("and", "or"):
        return [Token("and", run)]
    if run in ("pi", "e", "i") or lower in ("inf", "infinity", "infty"):
        return [Token("constant", run if run in ("pi", "e", "i") else "infinity")]
    if lower in ("degree", "degrees"):
        return [Token("degree", run)]
    if run[:-1] in FUNCTIONS:  # sinx
        return [*_letters(run[:-1], before), *_letters(run[-1], before)]
    if lower in WORD_ANSWERS or (lower in SHORT_UNITS and before and before[-1].kind in _OPERAND_ENDS):
        return [Token("words", run)]
    if len(run) <= 3:
        return [Token("constant" if letter in "ei" else "symbol", letter) for letter in run]
    return [Token("symbol" if run in GREEK else "words", run)]


def _number(match: re.Match[str]) -> Fraction:
    text = match[0]
    following = match.string[match.end() : match.end() + 2]
    if len(text) > MAX_DIGITS:
        raise RefusedError(f"a number has more than {MAX_DIGITS} characters")
    if re.match(r"\.\d", following):
        raise RefusedError(f"{text}{following} is no number")
    if match["repeating"]:
        whole, _, decimals = match["fixed"].partition(".")
        start = Fraction(int((whole + decimals) or "0"), 10 ** len(decimals))
        repeated = match["repeated"]
        return start + Fraction(int(repeated), (10 ** len(repeated) - 1) * 10 ** len(decimals))
    exponent = match["exponent"] or "0"
    if len(exponent) > 5 or abs(int(exponent)) > MAX_EXPONENT:
        raise RefusedError(f"the exponent of {text} is beyond {MAX_EXPONENT}")
    mantissa = text[: match.start("exponent") - match.start() - 1] if match["exponent"] else text
    return Fraction(_GROUP.sub("", mantissa)) * Fraction(10) ** int(exponent)


def _separated(match: re.Match[str]) -> str:
    """Return the number with only those plain commas that can separate two numbers."""
    return re.sub(r"\{,\}|\\,|,\\!|,(?=0)", lambda found: "_" * len(found[0]), match[0])
