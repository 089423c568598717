"""Numbers that a text holds, and those that lie on the way to a task's answer.

>>> sorted(map(int, milestones(Task("t", "48 clips, then half as many. In all?", "72", metadata={"steps": [24, 72]}))))
[24, 72]
"""

from __future__ import annotations

import re
from fractions import Fraction

from trajgym.types import Task

__all__ = ["all_numbers", "milestones", "numbers_in", "one_number"]

_NUMBER = re.compile(r"(?:\d{1,3}(?:,\d{3}(?!\d))+|\d+)(?:\.\d+)?", re.ASCII)
_ONE_NUMBER = re.compile(rf"[-+]?({_NUMBER.pattern})", re.ASCII)
_ANNOTATION = re.compile(r"<<[^<>=]+=([-+]?[\d.,/]+)>>")
_MOST_READ = 100_000  # characters of a text
_MOST_DIGITS = 40  # what is longer is no number


def all_numbers(text: str) -> list[Fraction]:
    """Return the numbers written in digits in ``text``, without signs, equal ones as often as they are written."""
    found = _NUMBER.findall(text[:_MOST_READ])
    return [Fraction(digits.replace(",", "")) for digits in found if len(digits) <= _MOST_DIGITS]


def numbers_in(text: str) -> set[Fraction]:
    """Return the numbers written in digits in ``text``, without signs."""
    return set(all_numbers(text))


def one_number(text: str) -> Fraction | None:
    """Return the number, without its sign, that ``text`` is as a whole; ``None`` where it is more or something else."""
    found = _ONE_NUMBER.fullmatch(text.strip()) if len(text) <= 2 * _MOST_DIGITS else None
    return next(iter(all_numbers(found[1])), None) if found else None


def milestones(task: Task) -> set[Fraction]:
    """Return the values that a solution of the task goes through, without signs and without those the question gives.

    They are read from ``metadata["steps"]``, a list of numbers, else from the ``<<48/2=24>>`` annotations of
    ``metadata["full_answer"]``. The policy is never shown them.
    """
    steps = task.metadata.get("steps")
    if not isinstance(steps, (list, tuple)):
        steps = _ANNOTATION.findall(str(task.metadata.get("full_answer", "")))
    values = [numbers_in(str(step)) for step in steps]
    # More than one number is a fraction such as 1/3, which nobody writes in digits alone.
    return {next(iter(found)) for found in values if len(found) == 1} - numbers_in(task.question)
