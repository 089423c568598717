"""The calculator's alphabet: text to tokens, with the glyphs, digit groups and money signs people write.

The checks come in a fixed order, so that an input has one error kind: length, emptiness, characters,
equations, depth, names. The grammar is the business of :mod:`trajgym.envs.tools.expression`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from typing import NamedTuple

from trajgym.envs.tools.exact import CalculatorError
from trajgym.errors import did_you_mean

__all__ = ["END", "MAX_DEPTH", "MAX_LENGTH", "Token", "read_tokens", "syntax_error"]

MAX_LENGTH = 1000
MAX_DEPTH = 50

_GLYPHS: dict[int, str | None] = {
    **dict.fromkeys(map(ord, "×·⋅∗"), "*"),
    **dict.fromkeys(map(ord, "−–"), "-"),
    ord("÷"): "/",
    **dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff"), None),  # zero width
}
_OTHER_SIGNS = frozenset("²³½¼¾€£")
_ILLEGAL_ASCII = re.compile(r"[^\w\s+\-*/%^().,=$]", re.ASCII)
_NON_ASCII = re.compile(r"[^\x00-\x7f]")

_WHOLE = r"\d+(?:_\d+)*"
_GROUPED = r"[1-9]\d{0,2}(?:,\d{3})+(?!\d)"
_TOKEN = rf"""(?P<gap>\s*)(?:
    (?P<number> (?:WHOLE)(?: [^\S\r\n]*[½¼¾] | (?:\.(?:{_WHOLE})?)?(?:[eE][+-]?\d+)? )
              | \.{_WHOLE}(?:[eE][+-]?\d+)? | [½¼¾] )
  | (?P<name> [xX](?=[\d.]) | of(?=[\d.]) | [^\W\d²³½¼¾][^\W²³½¼¾]* )
  | (?P<operator> \*\* | // | [-+*/%^] )
  | (?P<open> \( ) | (?P<close> \) ) | (?P<comma> , ) | (?P<power> [²³] )
  | (?P<money> [$€£](?=\s*[-+]?\s*[\d.½¼¾]) ) | (?P<unit> [$€£] )
)"""
# Inside a function call commas separate arguments, elsewhere they may group digits.
_IN_CALL = re.compile(_TOKEN.replace("WHOLE", _WHOLE), re.VERBOSE)
_OUTSIDE = re.compile(_TOKEN.replace("WHOLE", f"{_GROUPED}|{_WHOLE}"), re.VERBOSE)


class Token(NamedTuple):
    """A piece of an expression.

    Args:
        kind: ``"number"``, ``"name"``, ``"operator"``, ``"open"``, ``"close"``, ``"comma"``, ``"power"`` (a
            raised digit) or ``"end"``.
        text: The piece itself.
        gap: The blanks before it.
    """

    kind: str
    text: str
    gap: str

    @property
    def starts_operand(self) -> bool:
        """Whether an operand begins here, signs aside."""
        return self.kind in ("number", "open", "name")

    @property
    def is_sign(self) -> bool:
        """Whether this is ``+`` or ``-``."""
        return self.text in ("+", "-")


END = Token("end", "", "")


def syntax_error(message: str) -> CalculatorError:
    """Return an error of the kind ``syntax_error``."""
    return CalculatorError("syntax_error", message)


def read_tokens(text: str, functions: Collection[str]) -> list[Token]:
    """Cut an expression into tokens; the only names left are those of ``functions``.

    Raises:
        CalculatorError: ``too_long``, ``empty``, ``syntax_error``, ``equation_not_expression``, ``too_deep`` or
            ``unknown_name``.
    """
    if len(text) > MAX_LENGTH:
        raise CalculatorError(
            "too_long", f"The expression has {len(text)} characters, at most {MAX_LENGTH} are read. Split it up."
        )
    tokens = _cut(_normalised(text), functions)
    return [_resolved(tokens, i, functions) if t.kind == "name" else t for i, t in enumerate(tokens)]


def _normalised(text: str) -> str:
    """Translate glyphs, drop one trailing ``=``, and refuse what no expression can contain."""
    if not text.isascii():
        text = text.translate(_GLYPHS)
    text = text.strip().removesuffix("=").rstrip()
    if not text:
        raise CalculatorError("empty", "The expression is empty. Write a calculation such as 48/2.")
    if not text.isascii():
        text = _NON_ASCII.sub(_ascii_digit, text)
    illegal = _ILLEGAL_ASCII.search(text if text.isascii() else _NON_ASCII.sub("", text))
    if illegal:
        raise _illegal(illegal[0])
    if "=" in text:
        raise CalculatorError(
            "equation_not_expression", "This is an equation, not an expression. Write only the side to be calculated."
        )
    if text.count("(") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise CalculatorError("too_deep", f"Brackets are nested more than {MAX_DEPTH} deep. Calculate it in parts.")
    return text


def _ascii_digit(match: re.Match[str]) -> str:
    character = match[0]
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    if character.isspace() or character.isalpha() or character in _OTHER_SIGNS:
        return character
    raise _illegal(character)


def _illegal(character: str) -> CalculatorError:
    return syntax_error(f"The character {character!r} is not allowed. Write only numbers, operators and ( ).")


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    return deepest


def _cut(text: str, functions: Collection[str]) -> list[Token]:
    """Cut at the token borders; money signs beside numbers vanish."""
    tokens: list[Token] = []
    in_call = [False]  # for each open bracket: does it stand inside a function call?
    position, dropped = 0, -1  # dropped: how many tokens there were when a money sign was last dropped
    while position < len(text):
        match = (_IN_CALL if in_call[-1] else _OUTSIDE).match(text, position)
        if match is None:
            raise syntax_error(f"Cannot read {text[position : position + 20]!r}. A point needs digits beside it.")
        kind = str(match.lastgroup)
        token = Token(kind, match[kind], match["gap"])
        position = match.end()
        if kind == "number":
            _check_number(token.text, text[position : position + 1])
        elif kind == "open":
            in_call.append(in_call[-1] or (bool(tokens) and tokens[-1].text in functions))
        elif kind == "close" and len(in_call) > 1:
            in_call.pop()
        elif kind == "unit" and (not tokens or tokens[-1].kind != "number" or dropped == len(tokens)):
            raise syntax_error(f"The money sign {token.text} must stand beside a number.")
        if kind in ("money", "unit"):
            dropped = len(tokens)
        else:
            tokens.append(token)
    return tokens


def _check_number(literal: str, following: str) -> None:
    if following == "_" or (literal[-1] == "." and following.isalpha()):
        raise syntax_error(f"Malformed number {literal + following!r}. Write digits with at most one point.")


def _resolved(tokens: list[Token], i: int, functions: Collection[str]) -> Token:
    """Return the name at ``i``, or ``*`` for a word that multiplies."""
    token = tokens[i]
    if token.text in functions:
        return token
    if token.text == "of" or (token.text in ("x", "X") and _between_operands(tokens, i)):
        return Token("operator", "*", token.gap)
    hint = did_you_mean(token.text, functions) if len(token.text) > 1 else ""
    known = ", ".join(sorted(functions))
    raise CalculatorError(
        "unknown_name", f"Unknown name {token.text[:40]!r}.{hint} Write only numbers, operators and {known}."
    )


def _between_operands(tokens: list[Token], i: int) -> bool:
    """Whether the letter at ``i`` is a times sign: ``2 x -3`` is a product, ``2x - 3`` is algebra."""
    if i == 0 or not (tokens[i - 1].kind in ("number", "close", "power") or tokens[i - 1].text == "%"):
        return False
    first, second = [*tokens[i + 1 : i + 3], END, END][:2]
    if first.is_sign and first.gap and tokens[i].gap and not second.gap:
        return second.starts_operand
    return first.starts_operand
