r"""A stretch of a reply as tokens: numerals with their sign and scale, words, joiners, operators.

Layout (Markdown emphasis, LaTeX commands, currency and percent signs, quotes, tags) leaves no token, so that
``**$72$**``, ``\text{72}`` and ``$72.00`` look alike to the rules built on top. Nothing is ever evaluated:
an operator stays an operator.

>>> [(t.kind, t.text) for t in tokenize("about -$5 or 6", 0, 14)]
[('word', 'about'), ('number', '5'), ('join', 'or'), ('number', '6')]
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from trajgym.rewards.numbers import NUMERAL_START, numeral_at
from trajgym.rewards.vocabulary import ARITHMETIC, EQUALITY, JOINERS, ORDINALS, SCALES

__all__ = ["CURRENCY", "Token", "line_start", "tokenize"]

CURRENCY = "$€£¥¢₹₽₩₦₱฿₫₪₴₺"

_TOKEN = re.compile(
    rf"""
    (?P<tag></?[A-Za-z][^<>\n]{{0,80}}> | <!--[^\n]{{0,200}}?-->)
  | (?P<operator>(?<=[\d)])\s{{0,2}}[xX](?=\s{{0,2}}[{CURRENCY}]?[\d(])
        | (?=[-/!\\%％|<>−–×÷·⋅∗±∓≤≥≠√∞π¬]) (?: /{{2,9}}(?=\s{{0,9}}\d) | !={{1,9}} | (?<![\w)])!(?=[\d(])
        | (?<=[\d)])!{{1,9}}(?=[^\s"'”’*_)!]|\s?=)
        | \\?[%％](?:\\text\{{)?\s{{0,2}}of\b\s{{0,2}}\}}?\s{{0,2}}(?=[{CURRENCY}]?\d)
        | \|(?=[-−–]\s?[\d.,]{{1,20}}\|) | [-−–](?=\()
        | [<>]={{0,9}} | [×÷·⋅∗±∓≤≥≠√∞π¬]
        | \\(?:times|cdot|div|pm|mp|leq?|geq?|lt|gt|neq?|sqrt|infty|sum|prod|int|binom|cdots|ldots|dots|bmod|pmod
            | (?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|ln|lg|exp|min|max|gcd|lcm|[lr](?:floor|ceil|vert)|left\s?\\?\|
            | alpha|beta|gamma|delta|(?:var)?epsilon|theta|lambda|pi|rho|sigma|tau|(?:var)?phi|psi|omega)(?![A-Za-z])))
  | (?P<currency>(?:USD|EUR|GBP|INR|CAD|AUD|US|Rs)(?=[\d.]))
  | (?P<number>{NUMERAL_START})
  | (?P<degree>\^\s?\{{?\s?(?:\\circ|°)\s?\}}?)
  | (?P<power>\^|(?<=\d)\*\*(?=-?\d)|[⁰¹²³⁴⁵⁶⁷⁸⁹]+)
  | (?P<word>[A-Za-z][A-Za-z0-9_]*(?:['’][A-Za-z]+)?(?:[-‐‑][A-Za-z]+)* | [^\W\d_]+)
  | (?P<equals>[-=]+> | [=≈≅≃⇒→⟹]+ | \\(?:approx|Rightarrow|rightarrow|implies|therefore|to)(?![A-Za-z]))
  | (?P<layout>\s+ | \\[A-Za-z]+ | \\.)
  | (?P<join>[,;&，；、])
  | (?P<dash>[-−–—‒])
  | (?P<plus>\+) | (?P<star>\*) | (?P<slash>/)
  | (?P<open>\() | (?P<close>\)) | (?P<colon>[:：])
  | (?P<stop>[.!?。](?=[\s"'”’*_)]|$))
    """,
    re.VERBOSE,
)
# What goes on behind a numeral in a way that makes another quantity of it: `3h30m`, `3 and a half`.
_COMPOUND = re.compile(
    # A variable: `2x`, `3xy`, `5n`.
    r"(?:[beijnoqruvxyzXYZ]|a(?!\.)|[xyz]{2,3}|[a-c]{2,3})(?![A-Za-z0-9'’])|"
    r"(?!cm|mm|dm|km|m|ft|in)[A-Za-z]+\d\w*|(?:cm|mm|dm|km|m|ft|in)(?![23]\b)\d\w*"
    r"|\s(?:and|&)\san?\s(?:half|quarter|third|fourth|fifth)\b"
)
_MORE = re.compile(r" [A-Za-z]")
_TWO_SIGNS = re.compile(r"[-+−–]{2}\Z")


class Token(NamedTuple):
    """One token.

    Args:
        kind: ``number``, ``word``, ``join``, ``operator``, ``dash``, ``slash``, ``equals``, ``open``, ``close``,
            ``colon`` or ``stop``.
        start: Index of its first character; for a number that of its sign.
        end: Index behind its last character.
        text: As written; words in lower case.
        value: For a number its value, ``None`` when it is unreadable.
    """

    kind: str
    start: int
    end: int
    text: str
    value: Fraction | None = None


def tokenize(body: str, start: int, end: int) -> list[Token]:
    """Return the tokens of ``body[start:end]``; linear in its length."""
    return _settle(_scan(body, start, end), body)


def line_start(body: str, index: int, layout: str = " \t") -> bool:
    """Whether only characters of ``layout`` stand between ``index`` and the start of its line."""
    while index and body[index - 1] in layout:
        index -= 1
    return not index or body[index - 1] in "\n\r"


def _scan(body: str, index: int, end: int) -> list[Token]:
    raw = []
    match = _TOKEN.match
    while index < end:
        found = match(body, index, end)
        if found is None:
            index += 1
            continue
        kind, start, index = found.lastgroup or "", index, found.end()
        if kind == "number":
            numeral = numeral_at(body, start, end)
            compound = _COMPOUND.match(body, numeral.end, end)
            index = compound.end() if compound else numeral.end
            raw.append(Token(kind, start, index, body[start:index], None if compound else numeral.value))
        elif kind == "word":
            text = found[0].lower()
            kind = "join" if text in JOINERS else "operator" if text in ARITHMETIC else kind
            raw.append(Token(kind, start, index, text))
        elif kind in ("dash", "star"):
            # A mark plus a blank at the start of a line is a bullet.
            if not (index < len(body) and body[index].isspace() and line_start(body, start)):
                raw.append(Token(kind, start, index, found[0]))
        elif kind not in ("layout", "currency", "degree", "tag"):
            raw.append(Token(kind, start, index, found[0]))
    return raw


def _settle(raw: list[Token], body: str) -> list[Token]:
    """Fold signs, scale words and powers into the numerals; tell emphasis from multiplication."""
    out: list[Token] = []
    skip = 0
    for index, token in enumerate(raw):
        if skip:
            skip -= 1
        elif token.kind == "number":
            out.append(_signed(out, token, body))
        elif token.kind == "power":
            skip = _power(out, token, raw[index + 1 : index + 3])
        elif token.text in SCALES and out and out[-1].kind == "number":
            number = out.pop()
            value = None if number.value is None else number.value * SCALES[token.text]
            out.append(number._replace(end=token.end, text=body[number.start : token.end], value=value))
        elif token.kind == "dash" and index + 1 < len(raw) and raw[index + 1].text in SCALES:
            continue  # 1.5-million
        elif token.kind == "star":
            after = raw[index + 1].kind if index + 1 < len(raw) else ""
            if out and out[-1].kind in ("number", "close") and after in ("number", "open"):
                out.append(token._replace(kind="operator"))
        elif token.kind == "plus":
            # `72+ clips` means "72 or more"; any other plus behind something adds.
            more = out and out[-1].kind == "number" and out[-1].end == token.start and _MORE.match(body, token.end)
            if out and not more and out[-1].kind in ("number", "word", "close", "operator"):
                out.append(token._replace(kind="operator"))
        else:
            out.append(token)
    return out


def _signed(out: list[Token], number: Token, body: str) -> Token:
    """Take a minus sign, as a dash or as a word, from the end of ``out`` into ``number``."""
    if number.start > 1 and _TWO_SIGNS.match(body, number.start - 2, number.start):
        return number._replace(value=None)  # `--72`
    if not out:
        return number
    sign = out[-1]
    before = out[-2] if len(out) > 1 else None
    if sign.kind == "word" and sign.text in ("minus", "negative"):
        if before is not None and before.kind in ("number", "close"):
            out[-1] = sign._replace(kind="operator")
            return number
    elif sign.kind == "dash" and sign.text != "—":
        loose = body[sign.end].isspace()
        if before is not None and before.kind in ("number", "close", "dash"):
            return number
        if (
            before is not None
            and before.kind == "word"
            and (not body[sign.start - 1].isspace() or (loose and before.text not in EQUALITY))
        ):
            return number
    else:
        return number
    out.pop()
    return number._replace(start=sign.start, value=None if number.value is None else -number.value)


def _power(out: list[Token], power: Token, following: list[Token]) -> int:
    """Spoil the number that is raised to a power; return how many tokens the exponent takes.

    The exponent of a unit (``cm^2``, ``m²``) goes with the unit.
    """
    raised = bool(out) and out[-1].kind == "number" and power.start - out[-1].end <= 2
    width = 0
    if power.text in ("^", "**"):
        kinds = [token.kind for token in following]
        width = 2 if kinds[:2] == ["dash", "number"] else 1 if kinds[:1] in (["number"], ["word"]) else 0
        if raised and width == 1 and following[0].text in ORDINALS:
            return 1
    if raised:
        out[-1] = out[-1]._replace(value=None)
    return width
