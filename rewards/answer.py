r"""Reading the final answer out of a completion, and comparing it with the ground truth.

The rules in short: explicit markers beat the last number, a strong marker (``####``, ``\boxed{}``, ``<answer>``,
``Final answer:``) beats a weak one (``answer is``, ``Answer:``, ``A:``), and among equals the last one wins. A marker
holds one value; alternatives, empty markers and unreadable numbers are no answer. Values are exact rationals, units
are dropped and never converted, nothing is ever evaluated, and no text raises.

>>> read("<think>48 + 24 ...</think> She sold 72 clips.\n#### 72")
Reading(value=Fraction(72, 1), span=(51, 53), rule='hash')
>>> correct("Final answer: 70 or 72", "#### 72")
False
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from trajgym.errors import DataError
from trajgym.rewards.answer_fallback import read_last
from trajgym.rewards.answer_markers import Marker, is_heading, strong_markers, text_of, weak_markers
from trajgym.rewards.answer_reply import NEXT_TURN, reply
from trajgym.rewards.answer_value import Finding, joined, read_value
from trajgym.rewards.numbers import MAX_DIGITS

__all__ = ["MARKER_RULES", "MAX_CHARACTERS", "TOLERANCE", "Reading", "correct", "equal", "read", "truth"]

TOLERANCE = Fraction(1, 10**6)  # absolute; only for float noise such as 71.99999999999999
MAX_CHARACTERS = 1_000_000  # longer completions are not read
MARKER_RULES = frozenset({"hash", "boxed", "answer_tag", "final_answer", "answer_is", "answer_label", "json", "a_line"})

_MOST_MARKERS = 1_000  # headings, or weak markers without a number, that are passed over at most
_SIDE_BY_SIDE = 50  # markers in one list that are compared with one another at most
# Zero-width blanks, direction marks and soft hyphens: they are not seen, so they separate nothing.
_INVISIBLE = frozenset(
    map(chr, (0xAD, 0x61C, 0xFEFF, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A)))
)
_TRUTH = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?")


@dataclass(frozen=True)
class Reading:
    """What a completion gives as its answer.

    Args:
        value: The answer, or ``None`` when the completion gives none that counts.
        span: Start and end of the value in the completion; ``None`` without a value.
        rule: What decided. With a value: one of :data:`MARKER_RULES`, or ``last_number``. Without: ``hedged``
            (several values), ``negated``, ``unreadable``, ``no_number`` (a marker without one), ``unclosed_marker``,
            ``question`` or ``cut`` (how the text ends), ``too_long``, ``nothing``.
    """

    value: Fraction | None
    span: tuple[int, int] | None
    rule: str

    @property
    def marked(self) -> bool:
        """Whether the value stands behind an explicit marker."""
        return self.rule in MARKER_RULES


def read(text: str) -> Reading:
    """Read the final answer of a completion.

    Args:
        text: Everything the policy wrote, reasoning, calls and end tokens included; any string.
    """
    text = text.rstrip()
    if len(text) > MAX_CHARACTERS:
        return Reading(None, None, "too_long")
    if not text.isascii() and not _INVISIBLE.isdisjoint(text):
        kept = [index for index, character in enumerate(text) if character not in _INVISIBLE]
        reading = read("".join([text[index] for index in kept]))
        if reading.span is None:
            return reading
        start, end = reading.span
        return Reading(reading.value, (kept[start], kept[end - 1] + 1), reading.rule)
    body = _this_turn(reply(text))
    marked = _marked(body, strong_markers(body), strong=True) or _marked(body, weak_markers(body), strong=False)
    if marked is not None:
        return marked
    last = read_last(body)
    rule = {"value": "last_number", "no_number": "nothing"}.get(last.verdict, last.verdict)
    return Reading(last.value, last.span, rule)


def truth(text: str) -> Fraction:
    """Read a ground truth: a whole or decimal number, alone or behind the last ``####``.

    Args:
        text: For example ``"72"``, ``"1,000"`` or a whole data-set solution that ends in ``#### 72``.

    Raises:
        DataError: When it is anything else. A ground truth that cannot be read must never pay.
    """
    if isinstance(text, str):
        number = text.rpartition("####")[2].strip().replace(",", "")
        if len(number) <= MAX_DIGITS and _TRUTH.fullmatch(number):
            return Fraction(number)
    raise DataError(
        f"Cannot read the ground truth {text!r:.200}. Allowed is one number such as '72', '1,000' or '-0.5', alone or "
        "behind '####'. Mend the task's answer in the data set."
    )


def equal(a: Fraction | int | None, b: Fraction | int | None) -> bool:
    """Whether two values are the same up to :data:`TOLERANCE`; no value equals nothing, not even itself."""
    return a is not None and b is not None and abs(Fraction(a) - Fraction(b)) <= TOLERANCE


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
            start, end = text_of(body, marker, _limit(body, markers, index))
            if _counts(body, marker, start, end):
                first = marker.mark
    turn = NEXT_TURN.search(body, first)
    return body[: turn.start()] if turn else body


def _counts(body: str, marker: Marker, start: int, end: int) -> bool:
    """Whether a marker is one: strong ones unless a heading, weak ones with a number nearby."""
    if marker.rule == "hash":
        return not is_heading(body, start, end)
    return marker.rule in ("boxed", "answer_tag", "final_answer") or read_value(body, start, end).verdict != "no_number"


def _marked(body: str, markers: list[Marker], *, strong: bool) -> Reading | None:
    """Read the last marker of one tier; ``None`` when there is none that counts."""
    for index in range(len(markers) - 1, max(-1, len(markers) - 1 - _MOST_MARKERS), -1):
        marker = markers[index]
        if marker.unclosed:
            return Reading(None, None, "unclosed_marker")
        start, end = text_of(body, marker, _limit(body, markers, index))
        if marker.rule == "hash" and is_heading(body, start, end):
            continue
        finding = _innermost(body, start, end) if strong else read_value(body, start, end)
        if finding.verdict == "no_number" and not strong:
            continue
        if finding.value is not None and _several(body, markers, index, finding.value):
            return Reading(None, None, "hedged")
        return Reading(finding.value, finding.span, marker.rule if finding.value is not None else finding.verdict)
    return None


def _innermost(body: str, start: int, end: int) -> Finding:
    """Read the text of a strong marker; a weak marker inside it is the same marker."""
    for inner in reversed(weak_markers(body, start, end)[-3:]):
        finding = read_value(body, *text_of(body, inner, end))
        if finding.verdict != "no_number":
            return finding
    return read_value(body, start, end)


def _limit(body: str, markers: list[Marker], index: int) -> int:
    """Where an open-ended marker ends at the latest: at the next marker, or where the marker around it closes."""
    limit = markers[index + 1].mark if index + 1 < len(markers) else len(body)
    around = markers[max(0, index - _SIDE_BY_SIDE) : index]
    return min([limit, *(m.end for m in around if m.end is not None and m.end >= markers[index].start)])


def _several(body: str, markers: list[Marker], index: int, value: Fraction) -> bool:
    """Whether the marker at ``index`` is the last of several side by side that hold different values."""
    mark = markers[index].mark
    for other in range(index - 1, max(-1, index - 1 - _SIDE_BY_SIDE), -1):
        marker = markers[other]
        if marker.stop is not None and marker.stop > mark:
            mark = min(mark, marker.mark)  # it goes around the later one
            continue
        if marker.unclosed:
            return False
        finding = read_value(body, *text_of(body, marker, _limit(body, markers, other)))
        if finding.value is None or finding.span is None:
            return False
        if not joined(body, finding.span[1] if marker.stop is None else marker.stop, mark):
            return False
        if finding.value != value:
            return True
        mark = marker.mark
    return False
