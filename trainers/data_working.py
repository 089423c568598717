r"""A worked solution with calculator annotations, taken apart: which number stands where, and what is computed.

>>> working = read_working("Tim has 3*4 = <<3*4=12>>12 pens.\n#### 12")
>>> working.calculations[0].run([Fraction(3), Fraction(5)])
[Fraction(15, 1)]
>>> working.filled({working.slots[0]: "7"})
'Tim has 7*4 = <<3*4=12>>12 pens.\n#### 12'
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from trajgym.errors import DataError
from trajgym.trainers.data_numerals import Numeral, numerals

__all__ = ["Calculation", "Slot", "Working", "read_working"]

_ANNOTATION = re.compile(r"<<([^<>=]+)=([^<>=]*)>>")
_TOKEN = re.compile(r"\s*(\d+(?:,\d{3})*(?:\.\d+)?|\.\d+|[-+*/()])\s*", re.ASCII)
_RANK = {"+": 1, "-": 1, "*": 2, "/": 2}
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


class Slot(NamedTuple):
    """A place where a number stands.

    Args:
        start: Index of its first character.
        end: Index behind its last character.
        value: The number.
        place: ``"literal"`` (of a calculation), ``"result"`` (of one), ``"text"`` or ``"final"`` (behind ``####``).
        step: The calculation it belongs to; in a text, the last one that may explain it: the last one of its line.
        plain: Whether another whole number could stand in its place.
        shown: Whether it stands right behind a calculation, as the result that is read.
    """

    start: int
    end: int
    value: Fraction
    place: str
    step: int
    plain: bool
    shown: bool = False


class Calculation(NamedTuple):
    """One annotation.

    Args:
        program: The expression in postfix order: operators, and places in the list of literals.
        literals: The numbers of the expression.
        result: What the annotation says it comes to.
    """

    program: tuple[str | int, ...]
    literals: tuple[Fraction, ...]
    result: Fraction

    def run(self, values: Sequence[Fraction]) -> list[Fraction]:
        """Compute with other literals; return the value of each operation, the whole last.

        Raises:
            ZeroDivisionError: When it divides by zero.
        """
        stack: list[Fraction] = []
        passed: list[Fraction] = []
        for item in self.program:
            if isinstance(item, int):
                stack.append(values[item])
            else:
                right, left = stack.pop(), stack.pop()
                stack.append(_OPERATIONS[item](left, right))
                passed.append(stack[-1])
        return passed or stack


@dataclass(frozen=True)
class Working:
    """A worked solution taken apart.

    Args:
        text: The solution.
        calculations: Its annotations in order.
        slots: The places of its numbers, from left to right.
    """

    text: str
    calculations: tuple[Calculation, ...]
    slots: tuple[Slot, ...]

    def filled(self, numbers: Mapping[Slot, str]) -> str:
        """Return the solution with other numbers in some of its places."""
        out, end = [], 0
        for slot in self.slots:
            out += [self.text[end : slot.start], numbers.get(slot, self.text[slot.start : slot.end])]
            end = slot.end
        return "".join([*out, self.text[end:]])


def read_working(text: str) -> Working:
    """Take a worked solution apart.

    Raises:
        DataError: When an annotation is not arithmetic of plain numbers.
    """
    mark = text.rfind("####")
    head = text if mark < 0 else text[:mark]
    calculations: list[Calculation] = []
    slots: list[Slot] = []
    start = 0
    for line in head.splitlines(keepends=True):
        matches = list(_ANNOTATION.finditer(line))
        last = len(calculations) + len(matches) - 1
        told = list(numerals(line, working=True))
        end = 0
        for match in matches:
            slots += _text(told, end, match.start(), start, last)
            calculation, literals = _calculation(match, start, len(calculations))
            slots += literals
            span = (start + match.start(2), start + match.end(2))
            slots.append(Slot(*span, calculation.result, "result", len(calculations), _whole(match[2])))
            calculations.append(calculation)
            end = match.end()
        slots += _text(told, end, len(line), start, last)
        start += len(line)
    for numeral in numerals(text[start:], working=True):  # nothing is left where there is no final answer
        span = (start + numeral.start, start + numeral.end)
        slots.append(Slot(*span, numeral.value, "final", len(calculations) - 1, numeral.plain))
    return Working(text, tuple(calculations), tuple(slots))


def _text(told: Sequence[Numeral], start: int, end: int, offset: int, step: int) -> list[Slot]:
    """Return the places of a line's numbers between two of its annotations; ``start`` is 0 before the first."""
    return [
        Slot(offset + n.start, offset + n.end, n.value, "text", step, n.plain, shown=0 < start == n.start)
        for n in told
        if start <= n.start and n.end <= end
    ]


def _calculation(match: re.Match[str], offset: int, step: int) -> tuple[Calculation, list[Slot]]:
    output: list[str | int] = []
    operators: list[str] = []
    literals: list[Slot] = []
    position = match.start(1)
    wants_value = True
    while position < match.end(1):
        token = _TOKEN.match(match.string, position, match.end(1))
        if token is None:
            raise _unreadable(match)
        text, position = token[1], token.end()
        if text[0].isdigit() or text[0] == ".":
            if not wants_value:
                raise _unreadable(match)
            span = (offset + token.start(1), offset + token.end(1))
            output.append(len(literals))
            literals.append(Slot(*span, Fraction(text.replace(",", "")), "literal", step, _whole(text)))
            wants_value = False
        elif text == "(":
            if not wants_value:
                raise _unreadable(match)
            operators.append(text)
        elif wants_value:
            raise _unreadable(match)
        else:
            while operators and operators[-1] != "(" and (text == ")" or _RANK[operators[-1]] >= _RANK[text]):
                output.append(operators.pop())
            if text != ")":
                operators.append(text)
                wants_value = True
            elif not operators:
                raise _unreadable(match)
            else:
                operators.pop()
    if wants_value or "(" in operators:
        raise _unreadable(match)
    output += reversed(operators)
    result = match[2].replace(",", "").strip()
    if not re.fullmatch(r"\d*\.?\d+", result, re.ASCII):
        raise _unreadable(match)
    values = tuple(slot.value for slot in literals)
    return Calculation(tuple(output), values, Fraction(result)), literals


def _whole(text: str) -> bool:
    return re.fullmatch(r"[1-9]\d*|[1-9]\d{0,2}(,\d{3})+", text, re.ASCII) is not None


def _unreadable(match: re.Match[str]) -> DataError:
    return DataError(f"The annotation {match[0]!r:.80} is not arithmetic of plain numbers.")
