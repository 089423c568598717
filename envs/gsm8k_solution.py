r"""Demonstrations made from the calculator annotations of GSM8K's worked solutions.

>>> line = "Tim has 3 boxes of 4 = <<3*4=12>>12 pens."
>>> demonstration(f"{line}\n#### 12", "12")[0].text
'Tim has 3 boxes of'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from trajgym.types import ExpertTurn, ToolCall

__all__ = ["MOST_CALL_TURNS", "annotated", "demonstration"]

MOST_CALL_TURNS = 7
"""Turns with calls in a demonstration: with the one that answers, as many as an episode has by default."""

_ANNOTATION = re.compile(r"<<([^<>=]+)=([^<>]*)>>")
_NUMBER = re.compile(r"(?:\d[\d,]*)?\.?\d+", re.ASCII)
_WORKING = re.compile(r"(?:(?<![^\W\d_])[xX](?![^\W\d_])|[\W\d_])+$")  # what ends a text: no letters, but a lone x
_NUMBER_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)


@dataclass(frozen=True)
class _Turn:
    """A turn with calls, and what these calls come to."""

    texts: tuple[str, ...]
    expressions: tuple[str, ...]
    results: tuple[str, ...]

    def told(self, result: str) -> bool:
        """Whether a number stands in this turn, so that the turn has to wait for it."""
        value = _value(result)
        return value is None or any(value in _numbers(text) for text in (*self.texts, *self.expressions))

    def waits_for(self, earlier: _Turn) -> bool:
        """Whether this turn makes use of what an earlier one finds out."""
        return any(map(self.told, earlier.results))

    def __add__(self, other: _Turn) -> _Turn:
        results = self.results + other.results
        texts = [text for text in self.texts + other.texts if not any(_tells(text, result) for result in results)]
        return _Turn(tuple(texts), self.expressions + other.expressions, results)


def annotated(full: str) -> list[tuple[str, str]]:
    """Return the pairs (expression, result) of the ``<<expression=result>>`` in a worked solution."""
    return _ANNOTATION.findall(full)


def demonstration(full: str, answer: str) -> tuple[ExpertTurn, ...]:
    """Make a calculator call of each ``<<expression=result>>``, one in a turn, and a last turn that answers.

    A solution with more calls than :data:`MOST_CALL_TURNS` makes several in one turn. The last turn is explicit, since
    the last annotation is not always the answer.

    Args:
        full: The worked solution.
        answer: The number it comes to.
    """
    turns = []
    for line in full.split("\n"):
        start = 0
        for match in _ANNOTATION.finditer(line):
            lead = _lead(line[start : match.start()], match[2])
            turns.append(_Turn((lead,) if lead else (), (match[1].strip(),), (match[2],)))
            start = match.end()
    said = [
        ExpertTurn("\n".join(turn.texts), tuple(ToolCall("calculator", {"expression": e}) for e in turn.expressions))
        for turn in _packed(turns)
    ]
    return (*said, ExpertTurn(f"#### {answer}"))


def _packed(turns: Sequence[_Turn]) -> list[_Turn]:
    """Put neighbours together until there are few enough: those first of which none waits for the other."""
    packed = list(turns)
    while len(packed) > MOST_CALL_TURNS:
        # Four of the 8,792 solutions are chains in which every call waits; their first two calls go together.
        at = min(range(1, len(packed)), key=lambda i: packed[i].waits_for(packed[i - 1]))
        packed[at - 1 : at + 1] = [packed[at - 1] + packed[at]]
    return packed


def _lead(text: str, result: str) -> str:
    """Return the words before an annotation, without the working they end in.

    Empty when they give the result away: the policy has to learn it from the tool.
    """
    words = _WORKING.sub("", text).strip()
    return "" if "#" in words or _tells(words, result) else words


def _tells(words: str, result: str) -> bool:
    """Whether words give a result away, in digits or as a word, or may do so."""
    named = {Fraction(_NUMBER_WORDS.index(w)) for w in re.findall(r"[a-z]+", words.lower()) if w in _NUMBER_WORDS}
    value = _value(result)
    return value is None or value in _numbers(words) | named


def _value(result: str) -> Fraction | None:
    """Return the number that an annotation gives as its result, ``None`` where it is none."""
    if not re.fullmatch(r"[-0-9.,/]{1,40}", result):
        return None
    try:
        return Fraction(result.replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return None


def _numbers(text: str) -> set[Fraction]:
    return {Fraction(number.replace(",", "")) for number in _NUMBER.findall(text)}
