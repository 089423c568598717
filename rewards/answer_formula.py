r"""Reading an answer that is a formula, a set, an interval, a matrix or an equation, rather than one number.

The markers and their order are those of :mod:`trajgym.rewards.answer`; what stands behind them is read as an
expression. Without a marker the last line counts, where it is a formula or ends in one between dollar signs. What is no
expression, such as ``72 clips in 2 months``, is read as a number would be.

>>> text = r"Halving gives \boxed{\frac{x}{2}}."
>>> read_formula(text).rule, read_formula(text).source(text)
('boxed', '\\frac{x}{2}')
>>> correct_formula("The answer is $2x - 1$.", "-1 + 2x"), correct_formula("#### 2", "2x")
(True, False)
"""

from __future__ import annotations

import functools
import re

from trajgym.errors import DataError
from trajgym.rewards.answer import read
from trajgym.rewards.answer_markers import Marker, is_heading, limit_of, strong_markers, text_of, trimmed, weak_markers
from trajgym.rewards.answer_reading import Reading, read_with
from trajgym.rewards.answer_reply import NEXT_TURN, reply
from trajgym.rewards.expression import Parsed, read_expression
from trajgym.rewards.expression_tree import Node, Number, Words
from trajgym.rewards.symbolic import equal_trees

__all__ = ["correct_formula", "read_formula", "truth_formula"]

_MOST_MARKERS = 100  # that are passed over at most
_FORMULA = re.compile(r"\$\$?([^$]{1,2000})\$\$?|\\\((.{1,2000}?)\\\)|\\\[(.{1,2000}?)\\\]", re.DOTALL)
_EMPHASIS = " \t\n*_`>#"
_DIGIT = re.compile(r"\d")

Span = tuple[int, int]


def read_formula(text: str) -> Reading[Node]:
    """Read the final answer of a completion as a formula.

    Args:
        text: Everything the policy wrote; any string.
    """
    return read_with(_read, text)


def truth_formula(text: str) -> Node:
    r"""Read a ground truth that is a formula.

    Args:
        text: The formula, alone, behind the last ``####`` or in the last ``\boxed{}``.

    Raises:
        DataError: When it cannot be read, or has no value, such as ``1/0``. It must never pay.
        ConfigError: When sympy is not installed.
    """
    tree, reason = _truth(text) if isinstance(text, str) else Parsed(None, "it is no text")
    if tree is None:
        raise DataError(
            f"Cannot read the ground truth {text!r:.200} as a formula: {reason}. Allowed are formulas in LaTeX or "
            "plain text, such as 'x^2 + 1', '[0, 1)' or '\\frac{1}{2}'. Mend the task's answer in the data set."
        )
    return tree


def correct_formula(completion: str, ground_truth: str) -> bool:
    """Whether a completion gives the right formula.

    Args:
        completion: Everything the policy wrote.
        ground_truth: See :func:`truth_formula`.

    Raises:
        DataError: When the ground truth cannot be read.
        ConfigError: When sympy is not installed.
    """
    expected = truth_formula(ground_truth)
    value = read_formula(completion).value
    return value is not None and equal_trees(value, expected)


@functools.lru_cache(maxsize=4096)  # a task's truth is compared with a whole group of completions
def _truth(text: str) -> Parsed:
    if "####" in text:
        text = text.rpartition("####")[2]
    else:
        boxes = [marker for marker in strong_markers(text) if marker.rule == "boxed" and marker.end is not None]
        text = text[boxes[-1].start : boxes[-1].end] if boxes else text
    parsed = read_expression(text)
    if parsed.tree is not None and not equal_trees(parsed.tree, parsed.tree):
        return Parsed(None, "it has no value, or one that is too large")
    return parsed


def _read(text: str) -> Reading[Node]:
    body = _this_turn(reply(text))
    strong, weak = strong_markers(body), weak_markers(body)
    for index in range(len(strong) - 1, max(-1, len(strong) - 1 - _MOST_MARKERS), -1):
        marker = strong[index]
        if marker.unclosed:
            return Reading(None, (marker.mark, marker.start), marker.rule, "unclosed_marker")
        found = _behind(body, strong, index)
        if found is not None:
            return found
        if marker.rule != "hash" or not is_heading(body, *text_of(body, marker, limit_of(body, strong, index))):
            return _as_number(text)
    for index in range(len(weak) - 1, max(-1, len(weak) - 1 - _MOST_MARKERS), -1):
        found = _behind(body, weak, index)
        if found is not None:
            return found
        if _DIGIT.search(body, *text_of(body, weak[index], limit_of(body, weak, index))):
            return _as_number(text)
    return _last(body) or _as_number(text)


def _this_turn(body: str) -> str:
    """Cut off the next turn that a model invented behind its answer."""
    first = min((markers[0].mark for markers in (strong_markers(body), weak_markers(body)) if markers), default=None)
    turn = None if first is None else NEXT_TURN.search(body, first)
    return body[: turn.start()] if turn else body


def _behind(body: str, markers: list[Marker], index: int) -> Reading[Node] | None:
    """Read the formula behind a marker, if there is one."""
    marker = markers[index]
    start, end = text_of(body, marker, limit_of(body, markers, index))
    found = _formula(body, start, end, escaped=marker.rule == "json")
    if found is None or (marker.rule == "hash" and isinstance(found[0], Words) and "\\" not in body[start:end]):
        return None  # `#### Solution` is a heading
    return Reading(found[0], found[1], marker.rule)


def _formula(body: str, start: int, end: int, *, escaped: bool = False) -> tuple[Node, Span] | None:
    """Read ``body[start:end]``: the whole of it, or the one formula between dollar signs in it."""
    spans = [(start, end)]
    formulas = [found.span(found.lastindex or 0) for found in _FORMULA.finditer(body, start, end)]
    spans += formulas if len(formulas) == 1 else []
    for first, last in spans:
        text = body[first:last].strip(_EMPHASIS)
        tree = read_expression(text.replace("\\\\", "\\") if escaped else text).tree
        span = trimmed(body, first, last)
        if tree is not None and span is not None:
            return tree, span
    return None


def _last(body: str) -> Reading[Node] | None:
    """Read the last line: it is a formula, or ends in one."""
    end = len(body.rstrip())
    start = body.rfind("\n", 0, end) + 1
    formulas = list(_FORMULA.finditer(body, start, end))
    if formulas:
        if _DIGIT.search(body, formulas[-1].end(), end):
            return None  # a later number may be meant
        start, end = formulas[-1].span(formulas[-1].lastindex or 0)
    found = _formula(body, start, end)
    if found is None or (isinstance(found[0], Words) and not formulas):
        return None
    return Reading(found[0], found[1], "last_formula")


def _as_number(text: str) -> Reading[Node]:
    reading = read(text)
    value = None if reading.value is None else Number(reading.value)
    return Reading(value, reading.span, reading.rule, reading.reason)
