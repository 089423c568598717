"""What the kinds of programming problems share: what a problem is made of, and how its numbers are drawn.

A kind is a function that draws one problem: a question, its answer, and the programs of a demonstration. It works the
answer out by another way than the programs do (a closed form, a recursion, a table), so that one checks the other.

>>> draw = Draw(random.Random(0))
>>> 10 <= draw.whole(10, 99) <= 99, len(draw.letters("ab", 7))
(True, 7)
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias, TypeVar

from trajgym.envs.arithmetic_wording import PEOPLE

__all__ = ["Draw", "Kind", "Maker", "Problem", "kinds_of", "listed", "rounded"]

T = TypeVar("T")

# A value this close to the middle between two roundings (in units of the last digit) is drawn again: neither a
# program's floating-point noise nor the rule for ties may decide an answer.
_TIE = Fraction(1, 1000)


@dataclass(frozen=True)
class Problem:
    """One problem with its demonstration.

    Args:
        question: Everything the policy is told.
        answer: A whole number, or a decimal in digits.
        calls: Programs for one interpreter that keeps its names from call to call; the last one shows the answer. They
            hold all that makes the problem and nothing of its wording: equal calls mean the same problem. Each may be
            indented as a whole.
    """

    question: str
    answer: int | str
    calls: tuple[str, ...]

    @property
    def programs(self) -> list[str]:
        """The calls without their indentation."""
        return [textwrap.dedent(call).strip() for call in self.calls]


class Draw:
    """Random choices.

    Args:
        rng: Decides everything. Only ``random()`` is used: Python fixes its values across versions.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def whole(self, low: int, high: int) -> int:
        """Return a whole number from ``low`` to ``high``, both included."""
        return low + int(self._rng.random() * (high - low + 1))

    def wholes(self, n: int, low: int, high: int) -> list[int]:
        """Return ``n`` such numbers; they may repeat."""
        return [self.whole(low, high) for _ in range(n)]

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[self.whole(0, len(items) - 1)]

    def some(self, items: Sequence[T], n: int) -> list[T]:
        """Return ``n`` of the items, none twice, in random order."""
        rest = list(items)
        return [rest.pop(self.whole(0, len(rest) - 1)) for _ in range(n)]

    def letters(self, alphabet: str, n: int) -> str:
        """Return a text of ``n`` letters."""
        return "".join(self.pick(alphabet) for _ in range(n))

    def names(self, n: int) -> list[str]:
        """Return the names of ``n`` people."""
        return [person.name for person in self.some(PEOPLE, n)]

    def name(self) -> str:
        """Return one person's name."""
        return self.names(1)[0]


Maker: TypeAlias = Callable[[Draw], Problem | None]
"""Draws one problem; ``None`` when the numbers turn out not to suit, so that they are drawn again."""


@dataclass(frozen=True)
class Kind:
    """A kind of problem.

    Args:
        name: Unique among all kinds.
        group: What it is about; the kinds of one file are a group.
        level: 1 for one short loop, 2 for nested loops or several steps, 3 for numpy, sympy or several calls.
        make: Draws one.
    """

    name: str
    group: str
    level: int
    make: Maker


def kinds_of(group: str, makers: Mapping[int, Sequence[Maker]]) -> tuple[Kind, ...]:
    """Return the kinds of a group from their makers by level; a kind is called as its maker."""
    return tuple(Kind(make.__name__, group, level, make) for level, row in makers.items() for make in row)


def rounded(value: Fraction, digits: int) -> str | None:
    """Return ``value`` with so many decimals, or ``None`` when it is too close to a tie.

    >>> rounded(Fraction(2, 3), 2), rounded(Fraction(-1, 200), 2)
    ('0.67', None)
    """
    scaled = abs(value) * 10**digits
    if abs(scaled % 1 - Fraction(1, 2)) < _TIE:
        return None
    whole, rest = divmod(int(scaled + Fraction(1, 2)), 10**digits)
    return f"{'-' if value < 0 and (whole or rest) else ''}{whole}.{rest:0{digits}d}"


def listed(items: Sequence[object]) -> str:
    """Return the items as an English list.

    >>> listed([3, 5, 8])
    '3, 5 and 8'
    """
    texts = [str(item) for item in items]
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))
