r"""The same word problem with other numbers, its solution and its answer computed anew.

A problem's numbers are linked to those of its solution by their values, and only where that leaves no doubt: a number
that may come from two places, or from the wording, stays as it is, and a problem with a number that comes from nowhere
is refused. New numbers are drawn until everything that was a whole number is one again, all signs and the order of the
given numbers are as before, and each calculation is exact.

>>> question = "A crate holds 40 pens. Ann buys 9 crates and gives away 70 pens. How many pens are left?"
>>> answer = "She buys 40*9=<<40*9=360>>360 pens.\nThere are 360-70=<<360-70=290>>290 left.\n#### 290"
>>> new = renumber(question, answer, seed=1)
>>> new.changes
{'40': '60', '9': '8', '70': '110'}
>>> new.answer.split("\n")[1]
'There are 480-110=<<480-110=370>>370 left.'
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from trajgym.errors import ConfigError, DataError
from trajgym.rollout import derive_seed
from trajgym.trainers.data_augmented import Augmented, gathered
from trajgym.trainers.data_links import Links, link
from trajgym.trainers.data_numerals import Numeral, numerals, refusal, written
from trajgym.trainers.data_rows import solution_of
from trajgym.trainers.data_sources import Row
from trajgym.trainers.data_working import Working, read_working

__all__ = ["Renumbered", "renumber", "renumbered"]

_DRAWS = 200
_SMALLEST_RESULT = 2  # "1 apples"
_ANNOTATION = re.compile(r"<<[^<>]*>>")


@dataclass(frozen=True)
class Renumbered:
    """A problem with other numbers.

    Args:
        question: The question.
        answer: The worked solution.
        changes: The numbers that were changed, as they stand in the question: old to new.
    """

    question: str
    answer: str
    changes: Mapping[str, str]


def renumber(question: str, answer: str, *, seed: int = 0) -> Renumbered:
    """Return the problem with other numbers.

    Args:
        question: The question.
        answer: Its worked solution with calculator annotations, which ends in ``#### `` and the answer.
        seed: Decides the numbers.

    Raises:
        DataError: When the problem cannot be renumbered; says why in a few words.
    """
    hazard = refusal(question)
    if hazard:
        raise DataError(hazard)
    try:
        working = read_working(answer)
    except DataError as error:
        raise DataError("the solution's annotations are not plain arithmetic") from error
    given = list(numerals(question))
    links = link(question, given, working)
    rng = random.Random(derive_seed(seed, "renumber", question))
    for values in _draws(given, links, rng):
        found = links.recomputed(values)
        if found is not None and min(found.changed, default=0) >= _SMALLEST_RESULT:
            new = _written(question, given, working, links, values, found.results)
            _verify(question, answer, new)
            return new
    raise DataError("no other numbers fit")


def renumbered(rows: Sequence[Row], *, copies: int = 1, seed: int = 0) -> Augmented:
    """Return problems with other numbers, up to ``copies`` of each row, no two the same.

    Args:
        rows: Rows with ``question`` and ``answer`` (or ``full_answer``).
        copies: How often a row is renumbered.
        seed: Decides the numbers.

    Raises:
        ConfigError: When ``copies`` is not a whole number from 1.
        DataError: When a row has no question.
    """
    if isinstance(copies, bool) or not isinstance(copies, int) or copies < 1:
        raise ConfigError(f"copies must be a whole number from 1, got {copies!r}.")

    def make(i: int, copy: int) -> dict[str, str]:
        new = renumber(rows[i]["question"], solution_of(rows[i]), seed=derive_seed(seed, copy))
        return {"question": new.question, "answer": new.answer}

    return gathered("renumbered", rows, range(copies), make)


def _draws(given: Sequence[Numeral], links: Links, rng: random.Random) -> Iterator[dict[Fraction, Fraction]]:
    """Yield new values of some of the numbers that may change, all of them at first."""
    taken = {numeral.value for numeral in given} | links.fixed
    choices = {value: [n for n in _near(value) if n not in taken] for value in links.free}
    names = [value for value in links.free if choices[value]]
    for attempt in range(_DRAWS if names else 0):
        count = len(names) if attempt < _DRAWS // 2 else rng.randint(1, len(names))
        chosen = rng.sample(names, count)
        values = {name: rng.choice(choices[name]) for name in sorted(chosen)}
        if len(set(values.values())) == len(values) and _same_order(given, values):
            yield values


def _near(value: Fraction) -> list[Fraction]:
    """Return numbers as large and as round as ``value``."""
    number = int(value)
    unit = next(unit for unit in (1000, 100, 50, 10, 5, 1) if number % unit == 0 and (number >= 4 * unit or unit == 1))
    low, high = max(3, number * 6 // 10), number * 16 // 10 + 2
    return [Fraction(n) for n in range(-(-low // unit) * unit, high + 1, unit)]


def _same_order(given: Sequence[Numeral], values: Mapping[Fraction, Fraction]) -> bool:
    ordered = sorted({numeral.value for numeral in given})
    new = [values.get(value, value) for value in ordered]
    return all(a < b for a, b in itertools.pairwise(new))


def _written(
    question: str,
    given: Sequence[Numeral],
    working: Working,
    links: Links,
    values: Mapping[Fraction, Fraction],
    results: Sequence[Fraction],
) -> Renumbered:
    out, end, changes = [], 0, {}
    for numeral in given:
        old = question[numeral.start : numeral.end]
        new = written(values[numeral.value], old) if numeral.value in values else old
        if new != old:
            changes[old] = new
        out += [question[end : numeral.start], new]
        end = numeral.end
    numbers = {}
    for slot, source in links.sources.items():
        value = results[source] if isinstance(source, int) else values.get(source, source)
        if value != slot.value:
            numbers[slot] = written(value, working.text[slot.start : slot.end])
    return Renumbered("".join([*out, question[end:]]), working.filled(numbers), changes)


def _verify(question: str, answer: str, new: Renumbered) -> None:
    """Read the new solution as if it were anybody's: all of it must be right, and nothing but numbers have changed.

    Raises:
        DataError: When it is not; then there is a mistake in this module.
    """
    working = read_working(new.answer)
    exact = all(c.run(c.literals)[-1] == c.result for c in working.calculations)
    final = [slot.value for slot in working.slots if slot.place == "final"]
    shown = [slot for slot in working.slots if slot.shown]
    read = all(slot.value == working.calculations[_before(working, slot.start)].result for slot in shown)
    same = _skeleton(question) == _skeleton(new.question) and _skeleton(answer) == _skeleton(new.answer)
    if not (exact and read and same and final == [working.calculations[-1].result]):
        raise DataError("the new solution does not hold")


def _before(working: Working, position: int) -> int:
    return sum(match.end() <= position for match in _ANNOTATION.finditer(working.text)) - 1


def _skeleton(text: str) -> str:
    return re.sub(r"\d[\d,]*(?:\.\d+)?", "#", text)
