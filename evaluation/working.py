"""How a problem was worked: the arithmetic of a reply, that of the demonstration, and the numbers the problem gives.

>>> sorted(map(str, numbers_given("Half of 48 clips, then a dozen more at 5% off").all))
['1/2', '12', '2', '48', '5']
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from trajgym.envs.gsm8k_solution import annotated
from trajgym.evaluation.equations import Equation, asked, called, equations
from trajgym.protocols.reasoning import reasoning_spans
from trajgym.rewards.milestones import numbers_in
from trajgym.rewards.numbers import spelled
from trajgym.rewards.vocabulary import ONES
from trajgym.types import Step, Task, ToolCall

__all__ = ["CONVERSIONS", "Given", "Working", "demonstrated", "numbers_given", "rounds", "shown", "stands_for"]

CONVERSIONS = frozenset(map(Fraction, (0, 1, 2, 7, 10, 12, 24, 30, 52, 60, 100, 365, 1000)))
"""Numbers that anybody may bring along: units of time, percent, dozens and the like."""

_WORDS = re.compile(r"[a-z]+")
_FRACTION = re.compile(r"(?<![\d/.])(\d{1,6})/(\d{1,6})(?![\d/])", re.ASCII)
_COMPARED = {
    "half": (Fraction(1, 2), Fraction(2)), "halve": (Fraction(1, 2), Fraction(2)), "twice": (Fraction(2),),
    "double": (Fraction(2),), "doubled": (Fraction(2),), "thrice": (Fraction(3),), "triple": (Fraction(3),),
    "tripled": (Fraction(3),), "quadruple": (Fraction(4),), "third": (Fraction(1, 3), Fraction(3)),
    "quarter": (Fraction(1, 4), Fraction(4)), "fourth": (Fraction(1, 4), Fraction(4)), "dozen": (Fraction(12),),
    "fifth": (Fraction(1, 5), Fraction(5)), "couple": (Fraction(2),), "pair": (Fraction(2),), "score": (Fraction(20),),
    "decade": (Fraction(10),), "century": (Fraction(100),),
}  # fmt: skip


@dataclass(frozen=True)
class Given:
    """The numbers of a question.

    Args:
        numerals: Written in digits or as number words from three on: they say how many there are of something.
        words: What ``half``, ``twice``, ``a dozen``, ``one`` and ``two`` may stand for.
    """

    numerals: frozenset[Fraction]
    words: frozenset[Fraction]

    @property
    def all(self) -> frozenset[Fraction]:
        """Both."""
        return self.numerals | self.words


@dataclass(frozen=True)
class Working:
    """Arithmetic in the order in which it was done."""

    equations: tuple[Equation, ...]

    @property
    def values(self) -> tuple[Fraction, ...]:
        """What each comes to, without its sign."""
        return tuple(abs(e.value) for e in self.equations)

    @property
    def results(self) -> frozenset[Fraction]:
        """What later arithmetic may build on: values, and what was claimed to be one."""
        claims = [abs(e.claimed) for e in self.equations if e.claimed is not None]
        return frozenset([*self.values, *claims])

    @property
    def operands(self) -> frozenset[Fraction]:
        """All numbers that were put in, results of earlier arithmetic among them."""
        return frozenset(number for e in self.equations for number in e.operands)

    @property
    def brought(self) -> frozenset[Fraction]:
        """The numbers that were put in and are not the result of anything before them."""
        brought, known = set(), set[Fraction]()
        for equation in self.equations:
            brought |= set(equation.operands) - known
            known |= {abs(equation.value)} | (set() if equation.claimed is None else {abs(equation.claimed)})
        return frozenset(brought)


def shown(steps: Sequence[Step]) -> Working:
    """Return the working of an episode: what the policy wrote, and what its tools have executed, turn by turn.

    A block of reasoning counts only where nothing outside such blocks does; it holds attempts that were given up.
    """
    for read in (_without_reasoning, str):
        found: list[Equation] = []
        for step in steps:
            found += [*equations(read(step.action.text)), *called(step.results)]
        if found:
            return Working(tuple(found))
    return Working(())


def demonstrated(task: Task) -> Working:
    """Return the working of the task's demonstration: its calls, else the annotations of its worked solution."""
    calls = [call for turn in task.solution for call in turn.calls]
    full = task.metadata.get("full_answer")
    if not calls and isinstance(full, str):  # only what is annotated: sums in prose are not always right
        calls = [ToolCall("calculator", {"expression": expression}) for expression, _ in annotated(full)]
    return Working(tuple(e for e in map(asked, calls) if e is not None))


def numbers_given(question: str) -> Given:
    """Return the numbers that a question gives."""
    numerals, words = set(numbers_in(question)), set[Fraction]()
    words.update(Fraction(int(top), int(low)) for top, low in _FRACTION.findall(question) if int(low))
    text = _WORDS.findall(question.lower())
    index = 0
    while index < len(text):
        value, used = spelled(text[index : index + 12])
        if value is not None and used:
            (numerals if value > 2 else words).add(value)  # `one` and `two` often count nothing: one of them
        elif used:  # a fraction such as `three fourths`
            words.update(Fraction(ONES[word]) for word in text[index : index + used] if word in ONES)
        for word in text[index : index + max(1, used)]:
            words.update(_COMPARED.get(word.removesuffix("s"), ()))
        index += max(1, used)
    return Given(frozenset(numerals), frozenset(words))


def stands_for(number: Fraction, given: Iterable[Fraction]) -> set[Fraction]:
    """Return the given numbers that a number may stand for: itself, else its percentage, complement or inverse.

    >>> stands_for(Fraction(85, 100), [Fraction(15), Fraction(40)]) == {Fraction(15)}
    True
    """
    given = set(given)
    if number in given:
        return {number}
    return {g for g in given if number in _forms(g)}


def rounds(number: Fraction, results: Iterable[Fraction]) -> bool:
    """Whether a number is one of ``results`` to so many digits as it is written with.

    >>> rounds(Fraction("25.7"), [Fraction(180, 7)]), rounds(Fraction(26), [Fraction(27)])
    (True, False)
    """
    digits = next((d for d in range(7) if (number * 10**d).denominator == 1), 7)
    unit = Fraction(1, 10**digits)
    return any(r == number or ((r / unit).denominator != 1 and abs(r - number) < unit) for r in results)


def _forms(given: Fraction) -> set[Fraction]:
    share = given / 100
    forms = {share, 1 - share, 1 + share, 100 - given, 100 + given}
    return forms | ({1 / given, 100 / given, 1 - given, 1 + given} if given else set())


def _without_reasoning(text: str) -> str:
    spans, _ = reasoning_spans(text) if "<" in text else ([], False)
    parts, last = [], 0
    for start, end in spans:
        parts.append(text[last:start])
        last = end
    return "\n".join([*parts, text[last:]])
