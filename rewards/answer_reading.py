"""What reading a completion gives: a value, where it stands, and the rule that decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

__all__ = ["MARKER_RULES", "MAX_CHARACTERS", "REASONS", "RULES", "Reading", "Rule", "read_with"]

V = TypeVar("V")

MAX_CHARACTERS = 1_000_000  # longer completions are not read

# Zero-width blanks, direction marks and soft hyphens: they are not seen, so they separate nothing.
_INVISIBLE = frozenset(
    map(chr, (0xAD, 0x61C, 0xFEFF, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A)))
)


class Rule(NamedTuple):
    """How an answer was found.

    Args:
        tier: 1 for a strong marker, 2 for a weak one, 3 for text without one; a lower tier is never looked at.
        sign: The marker as a person knows it.
    """

    tier: int
    sign: str


RULES = {
    "hash": Rule(1, "####"),
    "boxed": Rule(1, "\\boxed{}"),
    "answer_tag": Rule(1, "<answer>"),
    "final_answer": Rule(1, "Final answer:"),
    "answer_is": Rule(2, "answer is"),
    "answer_label": Rule(2, "Answer:"),
    "json": Rule(2, '"answer":'),
    "a_line": Rule(2, "A:"),
    "last_formula": Rule(3, "last formula"),
    "last_number": Rule(3, "last number"),
    "none": Rule(3, "none"),
}
MARKER_RULES = frozenset(name for name, rule in RULES.items() if rule.tier < 3)
REASONS = {
    "hedged": "several values",
    "negated": "a negated answer",
    "unreadable": "not written in a way that is read",
    "no_number": "a marker without a value",
    "unclosed_marker": "a marker that is not closed",
    "question": "the text ends in a question",
    "cut": "the text ends in the middle",
    "too_long": "the text is too long",
    "nothing": "no value anywhere",
}
"""Why there is no value, in words."""


@dataclass(frozen=True)
class Reading(Generic[V]):
    """What a completion gives as its answer.

    Args:
        value: The answer, or ``None`` when the completion gives none that counts.
        span: Start and end of what was read in the completion: the value, or else what kept it from counting. ``None``
            when there is nothing to point at.
        rule: How it was found, one of :data:`RULES`.
        reason: Why there is no value, one of :data:`REASONS`; empty when there is one.
    """

    value: V | None
    span: tuple[int, int] | None
    rule: str
    reason: str = ""

    @property
    def marked(self) -> bool:
        """Whether there is a value and it stands behind an explicit marker."""
        return self.value is not None and self.rule in MARKER_RULES

    @property
    def tier(self) -> int:
        """1, 2 or 3, see :class:`Rule`."""
        return RULES[self.rule].tier

    def source(self, completion: str) -> str:
        """Return what was read as it stands in the completion; empty when there is nothing to point at."""
        return completion[self.span[0] : self.span[1]] if self.span else ""


def read_with(reader: Callable[[str], Reading[V]], text: str) -> Reading[V]:
    """Let ``reader`` read a text without what nobody sees in it; the span is one of the whole text."""
    text = text.rstrip()
    if len(text) > MAX_CHARACTERS:
        return Reading(None, None, "none", "too_long")
    if text.isascii() or _INVISIBLE.isdisjoint(text):
        return reader(text)
    kept = [index for index, character in enumerate(text) if character not in _INVISIBLE]
    reading = read_with(reader, "".join([text[index] for index in kept]))
    if reading.span is None:
        return reading
    start, end = reading.span
    return replace(reading, span=(kept[start], kept[end - 1] + 1))
