r"""Reading the final answer out of a completion, and comparing it with the ground truth.

The rules in short: explicit markers beat the last number, a strong marker (``####``, ``\boxed{}``, ``<answer>``,
``Final answer:``) beats a weak one (``answer is``, ``Answer:``, ``A:``), and among equals the last one wins. A marker
holds one value; alternatives, empty markers and unreadable numbers are no answer. Values are exact rationals, units
are dropped and never converted, nothing is ever evaluated, and no text raises.

>>> read("<think>48 + 24 ...</think> She sold 72 clips.\n#### 72")
Reading(value=Fraction(72, 1), span=(51, 53), rule='hash', reason='')
>>> correct("Final answer: 70 or 72", "#### 72")
False
"""

from __future__ import annotations

import re
from fractions import Fraction

from trajgym.errors import DataError
from trajgym.rewards.answer_clauses import disclaimed, withdrawn
from trajgym.rewards.answer_fallback import read_last
from trajgym.rewards.answer_markers import (
    SIDE_BY_SIDE,
    Marker,
    is_heading,
    limit_of,
    strong_markers,
    text_of,
    trimmed,
    weak_markers,
)
from trajgym.rewards.answer_reading import Reading, read_with
from trajgym.rewards.answer_reply import NEXT_TURN, reply
from trajgym.rewards.answer_value import REACH, Finding, joined, read_value
from trajgym.rewards.numbers import MAX_DIGITS

__all__ = ["TOLERANCE", "Reading", "correct", "equal", "read", "truth"]

TOLERANCE = Fraction(1, 10**6)  # absolute; only for float noise such as 71.99999999999999

_MOST_MARKERS = 1_000  # headings, or weak markers without a number, that are passed over at most
_SENTENCES = ("answer_is", "answer_label", "final_answer")
_PLAIN = re.compile(r" ?(0|[1-9][0-9]{0,14})\s*\Z")
_TRUTH = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?")


def read(text: str) -> Reading[Fraction]:
    """Read the final answer of a completion.

    Args:
        text: Everything the policy wrote, reasoning, calls and end tokens included; any string.
    """
    return read_with(_read, text)


def _read(text: str) -> Reading[Fraction]:
    body = _this_turn(reply(text))
    strong = strong_markers(body)
    if len(strong) == 1 and strong[0].rule == "hash" and (plain := _PLAIN.match(body, strong[0].start)):
        return Reading(Fraction(int(plain[1])), plain.span(1), "hash")  # as nearly always
    marked = _marked(body, strong, strong=True) or _marked(body, weak_markers(body), strong=False)
    if marked is not None:
        return marked
    last = read_last(body)
    if last.verdict == "value":
        return Reading(last.value, last.span, "last_number")
    if last.verdict == "no_number":
        return Reading(None, None, "none", "nothing")
    return Reading(None, last.span, "last_number", last.verdict)


def truth(text: str) -> Fraction:
    """Read a ground truth: a whole or decimal number, alone or behind the last ``####``.

    Args:
        text: For example ``"72"``, ``"1,000"`` or a whole data-set solution that ends in ``#### 72``.

    Raises:
        DataError: When it is anything else. A ground truth that cannot be read must never pay.
    """
    if isinstance(text, str):
        number = text.rpartition("####")[2].strip().replace(",", "")
        if number.isascii() and number.isdecimal() and len(number) <= MAX_DIGITS:
            return Fraction(int(number))
        if len(number) <= MAX_DIGITS and _TRUTH.fullmatch(number):
            return Fraction(number)
    raise DataError(
        f"Cannot read the ground truth {text!r:.200}. Allowed is one number such as '72', '1,000' or '-0.5', alone or "
        "behind '####'. Mend the task's answer in the data set."
    )


def equal(a: Fraction | int | None, b: Fraction | int | None) -> bool:
    """Whether two values are the same up to :data:`TOLERANCE`; no value equals nothing, not even itself."""
    if a is None or b is None or a == b:
        return a is not None and b is not None
    if a.denominator == b.denominator == 1:
        return False  # whole numbers are never that close
    return abs(Fraction(a) - b) <= TOLERANCE


def correct(completion: str, ground_truth: str) -> bool:
    """Whether a completion gives the right answer.

    Args:
        completion: Everything the policy wrote.
        ground_truth: See :func:`truth`.

    Raises:
        DataError: When the ground truth cannot be read.
    """
    expected = truth(ground_truth)
    return equal(read(completion).value, expected)


def _this_turn(body: str) -> str:
    """Cut off the next turn that a model invented behind its answer."""
    if NEXT_TURN.search(body) is None:
        return body
    first = len(body)
    for markers in (strong_markers(body), weak_markers(body)):
        for index, marker in enumerate(markers[:_MOST_MARKERS]):
            if marker.mark >= first:
                break
            start, end = text_of(body, marker, limit_of(body, markers, index))
            if _counts(body, marker, start, end):
                first = marker.mark
    turn = NEXT_TURN.search(body, first)
    return body[: turn.start()] if turn else body


def _counts(body: str, marker: Marker, start: int, end: int) -> bool:
    """Whether a marker is one: strong ones unless a heading, weak ones with a number nearby."""
    if marker.rule == "hash":
        return not is_heading(body, start, end)
    return marker.rule in ("boxed", "answer_tag", "final_answer") or read_value(body, start, end).verdict != "no_number"


def _marked(body: str, markers: list[Marker], *, strong: bool) -> Reading[Fraction] | None:
    """Read the last marker of one tier; ``None`` when there is none that counts."""
    for index in range(len(markers) - 1, max(-1, len(markers) - 1 - _MOST_MARKERS), -1):
        marker = markers[index]
        if marker.unclosed:
            return Reading(None, (marker.mark, marker.start), marker.rule, "unclosed_marker")
        start, end = text_of(body, marker, limit_of(body, markers, index))
        if marker.rule == "hash" and is_heading(body, start, end):
            continue
        finding = _innermost(body, start, end) if strong else read_value(body, start, end)
        if finding.value is not None and marker.rule in _SENTENCES and disclaimed(body, marker.mark):
            finding = Finding("negated")
        if finding.span is not None and _taken_back(body, finding):
            return Reading(None, finding.span, marker.rule, "hedged")
        if finding.verdict == "no_number" and not strong:
            continue
        if finding.value is not None and _several(body, markers, index, finding.value):
            return Reading(None, finding.span, marker.rule, "hedged")
        if finding.value is None:
            return Reading(None, trimmed(body, start, end) or (marker.mark, marker.start), marker.rule, finding.verdict)
        return Reading(finding.value, finding.span, marker.rule)
    return None


def _innermost(body: str, start: int, end: int) -> Finding:
    """Read the text of a strong marker; a weak marker inside it is the same marker."""
    for inner in reversed(weak_markers(body, start, end)[-3:]):
        finding = read_value(body, *text_of(body, inner, end))
        if finding.verdict != "no_number":
            return finding
    return read_value(body, start, end)


def _taken_back(body: str, finding: Finding) -> bool:
    """Whether another value follows that replaces this one in the same line."""
    assert finding.span is not None
    end = finding.span[1]
    line = body.find("\n", end, end + REACH)
    line = min(len(body), end + REACH) if line < 0 else line
    start = withdrawn(body, end, line) if line > end + 1 else None
    return start is not None and read_value(body, start, line).value != finding.value


def _several(body: str, markers: list[Marker], index: int, value: Fraction) -> bool:
    """Whether the marker at ``index`` is the last of several side by side that hold different values."""
    mark = markers[index].mark
    for other in range(index - 1, max(-1, index - 1 - SIDE_BY_SIDE), -1):
        marker = markers[other]
        if marker.stop is not None and marker.stop > mark:
            mark = min(mark, marker.mark)  # it goes around the later one
            continue
        if marker.unclosed:
            return False
        finding = read_value(body, *text_of(body, marker, limit_of(body, markers, other)))
        if finding.value is None or finding.span is None:
            return False
        if not joined(body, finding.span[1] if marker.stop is None else marker.stop, mark):
            return False
        if finding.value != value:
            return True
        mark = marker.mark
    return False
