"""The last number of a reply that has no marker.

>>> read_last("Natalia sold 72 clips over 2 months.").value
Fraction(2, 1)
>>> read_last("48 + 24 =").verdict
'cut'
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from trajgym.rewards.answer_clauses import denied, offers, unfinished
from trajgym.rewards.answer_tokens import CURRENCY, Token, tokenize
from trajgym.rewards.answer_value import REACH, Finding, is_factorial
from trajgym.rewards.numbers import VULGAR
from trajgym.rewards.vocabulary import FILLERS, LIST_OPENERS, OPERATIONS

__all__ = ["read_last"]

# The text is searched this far back from its end, in characters.
_SEARCHED = 100_000
_MOST_LINES = 500  # with digits that are looked at, until one holds a number
_LAST_DIGIT = re.compile(rf"(?s:.*)[\d{VULGAR}]")
_RULES = re.compile(r"(?:(?:\A|\n)[ \t]*([-*_=])(?:[ \t]*\1){2,}[ \t]*(?=\n|\Z)\s*)+\Z")
_CLOSING_TAG = re.compile(r"</?[A-Za-z][^<>\n]{0,80}>\Z")
_OPERATOR_COMMAND = re.compile(r"\\(?:times|cdot|div|pm|approx|leq?|geq?|lt|gt|Rightarrow|rightarrow|to)\Z")
_ENUMERATOR = re.compile(r"\s*\d{1,3}[.)]\s")
_CLOSERS = " \t\r\n\"'”’)]}.…|_`~*\\"


def read_last(body: str) -> Finding:
    """Read the last number of ``body``, which holds no marker."""
    verdict = _ending(body)
    if verdict:
        end = len(body.rstrip())
        return Finding(verdict, None, (max(body.rfind(" ", 0, end), body.rfind("\n", 0, end)) + 1, end))
    floor = max(0, len(body) - _SEARCHED)
    end = len(body)
    for _ in range(_MOST_LINES):
        digit = _LAST_DIGIT.match(body, floor, end)
        if digit is None:
            break
        start = max(body.rfind("\n", floor, digit.end()) + 1, floor)
        stop = body.find("\n", digit.end(), end)
        stop = end if stop < 0 else stop
        tokens = tokenize(body, max(start, stop - REACH), stop)
        last = max((i for i, t in enumerate(tokens) if t.kind == "number"), default=None)
        if last is not None:
            return _judge(tokens, last, body, start, stop)
        end = start  # only digits inside words, such as H2O
    return Finding("no_number")


def _judge(tokens: list[Token], last: int, body: str, start: int, stop: int) -> Finding:
    number = tokens[last]
    if denied(tokens, last):
        replaced = _replaced(tokens, last)
        if replaced is None:
            return Finding("negated", None, (number.start, number.end))
        last, number = replaced, tokens[replaced]
    if (
        number.value is None
        or _in_call(tokens[:last])
        or _operand(tokens, last)
        or unfinished(tokens, last)
        or is_factorial(tokens)
        or any(token.text in OPERATIONS for token in tokens[last + 1 : last + 2])
    ):
        return Finding("unreadable", None, (number.start, number.end))
    if _listed(tokens, last) or _in_column(body, start, stop):
        return Finding("hedged", None, (tokens[0].start, number.end))
    return Finding("value", number.value, (number.start, number.end))


def _replaced(tokens: list[Token], index: int) -> int | None:
    """Return the number that counts instead of a denied one right behind it: ``70, not 72``."""
    previous = next((i for i in range(index - 1, -1, -1) if tokens[i].kind == "number"), None)
    if previous is None or denied(tokens, previous) or any(t.kind == "stop" for t in tokens[previous:index]):
        return None
    return previous


def _ending(body: str) -> str:
    """Say whether the text ends as a question or in mid-sentence; empty when it does not."""
    tail = _RULES.sub("", body.rstrip()[-1000:])
    if tail.endswith("*") and tail[tail.rfind("\n") + 1 :].count("*") % 2:  # not the end of an emphasis
        return "cut"
    while True:
        shorter = _CLOSING_TAG.sub("", tail.rstrip(_CLOSERS))
        while shorter and unicodedata.category(shorter[-1]) in ("So", "Mn", "Cf"):
            shorter = shorter[:-1]
        if shorter.endswith("$") and not _opens_amount(shorter):
            shorter = shorter.rstrip("$")
        if shorter == tail:
            break
        tail = shorter
    if tail.endswith(("?", "？")):
        return "question"
    cut = tail.endswith(tuple("=+-−–—×÷·/<>^≈&([{,，:：" + CURRENCY)) or _OPERATOR_COMMAND.search(tail)
    if cut and tail[-1] in CURRENCY and not _opens_amount(tail):
        return ""
    return "cut" if cut else ""


def _opens_amount(text: str) -> bool:
    """Whether the currency sign at the end of ``text`` waits for its amount, rather than closing one or a formula."""
    if text.endswith("$$") or text[-2:-1].isalpha():
        return False
    before = text[:-1].rstrip()
    return not before or not (before[-1].isdigit() or before[-1] in ")}" + VULGAR)


def _in_call(tokens: list[Token]) -> bool:
    """Whether ``tokens`` leave a call such as ``print(`` open."""
    brackets: list[bool] = []
    for index, token in enumerate(tokens):
        if token.kind == "open":
            before = tokens[index - 1] if index else None
            brackets.append(before is not None and before.kind == "word" and before.end == token.start)
        elif token.kind == "close" and brackets:
            brackets.pop()
    return any(brackets)


def _operand(tokens: list[Token], index: int) -> bool:
    """Whether the number at ``index`` is part of arithmetic that nobody worked out."""
    outside = index
    while outside and tokens[outside - 1].kind == "open":
        outside -= 1
    if any(t.kind == "operator" for t in tokens[max(0, outside - 1) : index + 2]):
        return True
    return index > 1 and tokens[index - 1].kind in ("dash", "slash") and tokens[index - 2].kind in ("number", "close")


def _listed(tokens: list[Token], last: int) -> bool:
    """Whether the last number ends a bare list, or an either/or, of different values."""
    first, length, offered = last, 1, False
    while True:
        previous = next((i for i in range(first - 1, -1, -1) if tokens[i].kind == "number"), None)
        if previous is None:
            break
        gap = [t for t in tokens[previous + 1 : first] if t.text not in FILLERS and t.kind not in ("open", "close")]
        alternative = offers(gap)
        if not alternative and any(t.kind != "join" for t in gap):
            break
        first, length, offered = previous, length + 1, offered or alternative
    if len({t.value for t in tokens[first : last + 1] if t.kind == "number"}) == 1:
        return False
    if offered:
        return True
    lead = next((t for t in reversed(tokens[:first]) if t.text not in FILLERS), None)
    introduced = lead is None or lead.kind in ("colon", "equals") or lead.text in LIST_OPENERS
    closed = sum(t.kind == "word" for t in tokens[last + 1 :]) <= 1
    return closed and (introduced or length > 2)


def _in_column(body: str, start: int, stop: int) -> bool:
    """Whether this line and the one above it hold nothing but one number each, and different ones."""
    value = _bare(body, start, stop)
    if value is None:
        return False
    above = len(body[max(0, start - REACH) : start].rstrip())
    above_end = max(0, start - REACH) + above
    above_start = body.rfind("\n", 0, above_end) + 1
    other = _bare(body, above_start, above_end)
    return other is not None and other != value


def _bare(body: str, start: int, stop: int) -> Fraction | None:
    if stop - start > REACH or "+" in body[start:stop]:  # column addition is not a list of guesses
        return None
    enumerator = _ENUMERATOR.match(body, start, stop)
    tokens = [t for t in tokenize(body, start, stop) if t.kind not in ("stop", "join")]
    if enumerator and len(tokens) > 1 and tokens[0].start < enumerator.end():
        tokens = [t for t in tokens[1:] if t.kind != "close"]
    return tokens[0].value if [t.kind for t in tokens] == ["number"] else None
