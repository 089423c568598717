"""From the text of a marker to its one value.

A marker holds one value. The first number counts when the rest is a phrase (``72 clips in 2 months``); different
numbers that stand side by side (``72 or 73``, ``3 hours 30 minutes``) are hedged and count as no answer.

>>> read_value("about 72 clips in 2 months", 0, 26).value
Fraction(72, 1)
>>> read_value("72 or 73", 0, 8)
Finding(verdict='hedged', value=None, span=None)
"""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from trajgym.rewards.answer_clauses import correction, denied, left_undone, offers, unfinished
from trajgym.rewards.answer_tokens import Token, tokenize
from trajgym.rewards.numbers import spelled
from trajgym.rewards.vocabulary import ALTERNATIVES, FILLERS, NEGATIONS, PHRASE_WORDS

__all__ = ["REACH", "Finding", "is_factorial", "joined", "read_value"]

# Text of one marker behind this many characters is not looked at: an answer is short, and the reader stays linear.
REACH = 4_000
_OPENERS = ("#", "{", ">", "\n")  # behind these a marker's text begins with its value, not within a sentence
_ENUMERATOR = re.compile(r"[\s*_]*(\d{1,2})[.)][*_]*\s+(?=[\s*_~≈(+$€£−–-]*\.?\d)")
_UNEQUAL = ("≠", "\\ne", "\\neq", "!=")
_NEAR = 200  # characters; markers further apart are not read as one list


class Finding(NamedTuple):
    """What a stretch of text says.

    Args:
        verdict: ``value``, ``hedged``, ``negated``, ``unreadable``, ``question``, ``cut`` or ``no_number``.
        value: The value, exactly when the verdict is ``value``.
        span: Where it stands; without a value, where what kept it from counting does, if that is known.
    """

    verdict: str
    value: Fraction | None = None
    span: tuple[int, int] | None = None


def read_value(body: str, start: int, end: int) -> Finding:
    """Read the one value of the marker text ``body[start:end]``."""
    end = min(end, start + REACH)
    bare = body[start - 1 : start] in _OPENERS
    numbered = _ENUMERATOR.match(body, start, end) if bare else None
    tokens = tokenize(body, numbered.end() if numbered else start, end)
    if not numbered and [t.kind for t in tokens] == ["number"]:
        return _chain(tokens, 0)  # as nearly always
    if numbered and (numbered[1] != "1" or sum(t.kind in ("word", "number") for t in tokens) > 3):
        return Finding("hedged")  # one of several, or none
    if tokens and tokens[0].text in ALTERNATIVES:
        return Finding("hedged")  # `or 73`, behind another answer
    if bare and is_factorial(tokens):
        return Finding("unreadable")
    tokens = _without_remarks(_spell(_to_first_stop(tokens)))
    first = _first_number(tokens)
    if first is None:
        return Finding("no_number")
    if denied(tokens, first) or any(t.text in NEGATIONS or t.text in _UNEQUAL for t in tokens[:first]):
        tokens = correction(tokens, first)
        if not tokens or denied(tokens, first := _first_number(tokens) or 0):
            return Finding("negated")
    equals = max((i for i, t in enumerate(tokens) if t.kind == "equals"), default=None)
    if equals is not None:
        if _two_equations(tokens, equals):
            return Finding("hedged")
        left, right = tokens[:equals], tokens[equals + 1 :]
        # `72 = total clips` names the value behind the sign; `48 + 24 =` gives none.
        tokens = right if _first_number(right) is not None or not right else left
        first = _first_number(tokens)
    elif unfinished(tokens, first):  # `twice 36, which is 72`
        tokens = correction(tokens, first)
        first = _first_number(tokens)
    return Finding("unreadable") if first is None else _chain(tokens, first)


def joined(body: str, start: int, end: int) -> bool:
    """Whether ``body[start:end]``, the gap between two markers, puts them side by side as several answers."""
    if end - start > _NEAR:
        return False
    gap = [t for t in tokenize(body, start, end) if t.text not in FILLERS]
    kinds = [t.kind for t in gap]
    if not gap:
        return "\n" not in body[start:end]  # one below the other: the later one replaces the earlier
    if kinds == ["join", "word", "equals"]:  # x = .. and y = ..
        return True
    if "stop" in kinds or ("word" in kinds and gap[-1].text not in ("and", "or")):
        return False
    return _between(gap) == "joined"


def is_factorial(tokens: list[Token]) -> bool:
    """Whether a text is nothing but a number and ``!``: behind a sentence that is joy, without one a factorial."""
    if [t.text for t in tokens[1:2]] != ["!"] or any(t.kind != "stop" for t in tokens[1:]):
        return False
    return tokens[0].kind == "number" and tokens[0].end == tokens[1].start


def _chain(tokens: list[Token], first: int) -> Finding:
    """Take the number at ``first`` unless it is part of arithmetic or stands beside another value."""
    number = tokens[first]
    before = tokens[first - 1] if first else None
    if number.value is None or (before is not None and before.kind == "operator"):
        return Finding("unreadable")
    index = first
    while True:
        following = next((i for i in range(index + 1, len(tokens)) if _is_value(tokens[i])), len(tokens))
        gap = tokens[index + 1 : following]
        relation = _between(gap, more=following < len(tokens))
        part = number.value.denominator != 1 and [t.text for t in gap if t.text not in FILLERS] == ["of"]
        if part and following < len(tokens):
            relation = "operator"  # 3/4 of 96
        if relation == "operator":
            return Finding("unreadable")
        if following == len(tokens) or relation == "phrase":
            if _otherwise(tokens[following:], number.value):
                return Finding("hedged")
            return Finding("value", number.value, (number.start, number.end))
        if tokens[following].value != number.value:
            return Finding("hedged")
        index = following


def _otherwise(tokens: list[Token], value: Fraction) -> bool:
    """Whether another value follows for the other case: ``72 if it rains, else 73``."""
    return any(
        before.text in ("else", "otherwise") and _is_value(token) and token.value != value
        for before, token in pairwise(tokens)
    )


def _between(gap: list[Token], *, more: bool = True) -> str:
    """Say what stands between two numbers, or behind the last one: ``joined``, ``operator`` or ``phrase``."""
    gap = [t for t in gap if t.text not in FILLERS and t.kind not in ("stop", "open", "close")]
    if not gap:
        return "joined"
    if gap[0].kind == "operator" or left_undone(gap, more=more):
        return "operator"
    if {t.kind for t in gap} <= {"dash"} or (len(gap) == 1 and gap[0].kind in ("slash", "colon")):
        return "joined"
    texts = [t.text for t in gap]
    if offers(gap) or texts in (["by"], ["but"], ["then"], ["followed", "by"]) or texts[-1] == "now":
        return "joined"
    if any(t.kind not in ("word", "join") or t.text in PHRASE_WORDS for t in gap):
        return "phrase"
    words = sum(t.kind == "word" for t in gap)
    if gap[-1].kind == "join":
        return "joined" if words <= 3 else "phrase"
    return "joined" if words == len(gap) <= 2 else "phrase"


def _to_first_stop(tokens: list[Token]) -> list[Token]:
    """Drop what follows the sentence that holds the first number, and all full stops.

    A sentence goes on behind a short unit (``1 hr. 15 min.``) and before an alternative.
    """
    seen = False
    kept: list[Token] = []
    for index, token in enumerate(tokens):
        if token.kind == "stop":
            following = tokens[index + 1 : index + 2]
            abbreviated = _kinds(kept[-2:] + following) == ["number", "word", "number"] and len(kept[-1].text) <= 3
            abbreviated = abbreviated or (bool(kept) and kept[-1].kind == "join")  # 72 vs. 73
            if seen and not abbreviated and not (following and following[0].text in ALTERNATIVES):
                break
            continue
        seen = seen or token.kind == "number"
        kept.append(token)
    return kept


def _spell(tokens: list[Token]) -> list[Token]:
    """Turn number words into numbers.

    Beside digits they are plain words (``one gets 72``), unless they are offered as an alternative to them.
    """
    if not any(t.kind == "word" for t in tokens):
        return tokens
    words = [
        (t.text.replace("‐", "-").replace("‑", "-").split("-") if t.kind in ("word", "join") else [""]) for t in tokens
    ]
    digits = any(t.kind == "number" for t in tokens)
    out: list[Token] = []
    index = 0
    while index < len(tokens):
        flat = [w for group in words[index : index + 12] for w in group]
        value, used = spelled(flat) if flat[0] else (None, 0)
        # How many tokens the words come from; none when the number would end inside a hyphenated word.
        width = next((n for n in range(1, 13) if sum(map(len, words[index : index + n])) == used), 0) if used else 0
        if not width:
            out.append(tokens[index])
            index += 1
            continue
        first, last = tokens[index], tokens[index + width - 1]
        text = " ".join(t.text for t in tokens[index : index + width])
        number = Token("spelled" if digits else "number", first.start, last.end, text, value)
        if out and out[-1].kind == "word" and out[-1].text in ("minus", "negative"):
            sign = out.pop()
            number = number._replace(start=sign.start, value=None if value is None else -value)
        out.append(number)
        index += width
    if digits:
        out = [t if t.kind != "spelled" or _alternative(out, i) else t._replace(kind="word") for i, t in enumerate(out)]
    return out


def _alternative(tokens: list[Token], index: int) -> bool:
    near = tokens[max(0, index - 2) : index] + tokens[index + 1 : index + 3]
    return any(t.text in ALTERNATIVES for t in near) and any(t.kind == "number" for t in near)


def _without_remarks(tokens: list[Token]) -> list[Token]:
    """Drop bracketed remarks when a number stands outside, and never look inside a call such as ``print(72)``.

    A remark that offers an alternative, ``72 (or 73)``, is no remark.
    """
    plain: list[Token] = []  # outside every bracket
    readable: list[Token] = []  # outside every call
    depth = call = offer = 0  # the latter two: depth of the bracket that opened a call, an offer
    for index, token in enumerate(tokens):
        if token.kind == "open":
            depth += 1
            before = tokens[index - 1] if index else None
            if before is not None and before.end == token.start and before.kind in ("word", "number", "close"):
                if before.kind == "word":
                    call = call or depth
                elif index + 1 < len(tokens) and tokens[index + 1].kind == "number":
                    product = token._replace(kind="operator")  # 2(36) and (2)(36) multiply
                    plain.append(product)
                    readable.append(product)
            if index + 1 < len(tokens) and tokens[index + 1].text in ALTERNATIVES:
                offer = offer or depth
        elif token.kind == "close":
            call, offer = (0 if call == depth else call), (0 if offer == depth else offer)
            depth = max(0, depth - 1)
        else:
            if not depth or offer:
                plain.append(token)
            if not call:
                readable.append(token)
    return plain if any(_is_value(t) for t in plain) else readable


def _first_number(tokens: list[Token]) -> int | None:
    return next((i for i, t in enumerate(tokens) if _is_value(t)), None)


def _is_value(token: Token) -> bool:
    return token.kind in ("number", "spelled")


def _two_equations(tokens: list[Token], last: int) -> bool:
    """Whether the last equation is a second one: ``x = 3, y = 5``."""
    previous = max((i for i in range(last) if tokens[i].kind == "equals"), default=None)
    if previous is None:
        return False
    left = [t for t in tokens[previous + 1 : last] if t.text not in FILLERS]
    return _kinds(left[:1]) == ["number"] and _kinds(left[-2:]) == ["join", "word"] and len(left) <= 5


def _kinds(tokens: list[Token]) -> list[str]:
    return [t.kind for t in tokens]
