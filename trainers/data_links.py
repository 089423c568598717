"""Which number of a worked solution comes from which number of the question, or from which calculation before it.

Numbers are recognised by their values. A value that can come from two places binds neither: whatever it might have come
from is then left alone, and the search starts again with fewer numbers that are free to change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from trajgym.errors import DataError
from trajgym.trainers.data_numerals import Numeral, implied_values, spelled_values
from trajgym.trainers.data_working import Calculation, Slot, Working

__all__ = ["Links", "Recomputed", "link"]

Source: TypeAlias = "Fraction | int"
"""What a number is: a value that the question gives, or the calculation (its place) whose result it is."""

_SMALLEST = 5  # smaller numbers count what is listed, or are part of a phrase, too often
_SMALL = 12  # up to here, a number may also count things that are listed


class Recomputed(NamedTuple):
    """What the calculations come to with other numbers.

    Args:
        results: The result of each.
        changed: Those results that differ from before, or would with other numbers.
    """

    results: tuple[Fraction, ...]
    changed: tuple[Fraction, ...]


@dataclass(frozen=True)
class Links:
    """The links of one problem.

    Args:
        free: Numbers of the question that may change, in increasing order.
        fixed: Values that must stay what they are.
        sources: Where the number in each place of the solution comes from, for those that can change.
        calculations: The solution's calculations.
        literals: For each, where its literals come from.
        varying: The calculations whose result can change.
    """

    free: tuple[Fraction, ...]
    fixed: frozenset[Fraction]
    sources: Mapping[Slot, Source]
    calculations: tuple[Calculation, ...]
    literals: tuple[tuple[Source, ...], ...]
    varying: frozenset[int]

    def recomputed(self, values: Mapping[Fraction, Fraction]) -> Recomputed | None:
        """Compute everything with other numbers.

        Args:
            values: New values of some of the free numbers.

        Returns:
            The results, or ``None`` when something is no whole number any more, or has another sign.
        """
        results: list[Fraction] = []
        for calculation, sources in zip(self.calculations, self.literals, strict=True):
            new = [results[s] if isinstance(s, int) else values.get(s, s) for s in sources]
            try:
                before, after = calculation.run(calculation.literals), calculation.run(new)
            except ZeroDivisionError:
                return None
            if not all(map(_alike, before, after)):
                return None
            results.append(after[-1])
        return Recomputed(tuple(results), tuple(results[k] for k in sorted(self.varying)))


def _alike(before: Fraction, after: Fraction) -> bool:
    """Whether a value can take the place of another: as whole as that one, and on the same side of zero."""
    if before.denominator > 1:
        return after == before
    return after.denominator == 1 and (before > 0) == (after > 0) and (before < 0) == (after < 0)


def link(question: str, given: Sequence[Numeral], working: Working) -> Links:
    """Find out which numbers of a problem can change, and what changes with them.

    Args:
        question: The question.
        given: Its numbers in digits.
        working: Its solution.

    Raises:
        DataError: When none can, or a number's origin is not known; says why in a few words.
    """
    _check_exact(working)
    implied = implied_values(question) | spelled_values(working.text)
    _check_origins(given, implied, working)
    free = _eligible(question, given, implied, working)
    while free:
        attempt = _Attempt(free, {n.value for n in given if n.value not in free} | implied, working)
        doubtful = attempt.doubtful()
        if not doubtful:
            return attempt.links()
        free -= doubtful
    raise DataError("no number can be changed without doubt")


class _Attempt:
    """Links under the assumption that certain numbers are free."""

    def __init__(self, free: set[Fraction], fixed: set[Fraction], working: Working) -> None:
        self._free, self._working = free, working
        self._spoken = spelled_values(working.text)
        self._fixed = set(fixed)
        self._depends: list[frozenset[Fraction]] = []  # free numbers behind each result
        self._same: list[int] = []  # the first calculation of the same
        self._keys: dict[object, int] = {}
        self._sources: dict[Slot, Source] = {}
        self._literals: list[tuple[Source, ...]] = []
        self._pending: list[Source] = []
        self._doubts: set[Fraction] = set()

    def doubtful(self) -> set[Fraction]:
        """Link every number; return the free ones that are in the way."""
        for slot in self._working.slots:
            if slot.place == "literal":
                self._pending.append(self._bound(slot, len(self._depends)))
            elif slot.place == "result":
                self._compute(slot)
        for slot in self._working.slots:
            if slot.place == "text":
                self._read(slot)
            elif slot.place == "final":
                self._bind(slot, self._same[-1])
        last = self._depends[-1]
        if not self._doubts and not last:
            return set(self._free)  # nothing that can change reaches the answer
        used = frozenset().union(*self._depends)
        return self._doubts or self._free - used

    def links(self) -> Links:
        varying = frozenset(k for k, depends in enumerate(self._depends) if depends)
        return Links(
            tuple(sorted(self._free)),
            frozenset(self._fixed),
            self._sources,
            self._working.calculations,
            tuple(self._literals),
            varying,
        )

    def _compute(self, slot: Slot) -> None:
        calculation = self._working.calculations[slot.step]
        sources, self._pending = tuple(self._pending), []
        depends: frozenset[Fraction] = frozenset().union(*map(self._behind, sources))
        alone = sources[0] if len(sources) == 1 else None
        key = (calculation.program, sources)
        first = alone if isinstance(alone, int) else self._keys.setdefault(key, len(self._depends))
        self._literals.append(sources)
        self._depends.append(depends)
        self._same.append(first)
        if depends:
            self._bind(slot, len(self._depends) - 1)
            if not _is_count(slot.value) or slot.value in self._spoken:  # words are not rewritten
                self._doubts |= depends
            passed = calculation.run(calculation.literals)
            if any(value.denominator > 1 for value in passed[:-1]) and not self._harmless(calculation, sources):
                self._doubts |= depends
        else:
            self._fixed.add(slot.value)

    def _harmless(self, calculation: Calculation, sources: tuple[Source, ...]) -> bool:
        """Whether the broken numbers on the way to a result stay the same: they come from constants alone."""
        nudged = [v + 1 if self._behind(s) else v for v, s in zip(calculation.literals, sources, strict=True)]
        try:
            before, after = calculation.run(calculation.literals), calculation.run(nudged)
        except ZeroDivisionError:
            return False
        return all(a == b for a, b in zip(before, after, strict=True) if a.denominator > 1)

    def _read(self, slot: Slot) -> None:
        if slot.shown:
            step = self._step_before(slot)
            if self._depends[step]:
                if slot.value != self._working.calculations[step].result:
                    self._doubts |= self._depends[step]
                self._bind(slot, step)
            return
        source = self._bound(slot, slot.step + 1)
        if self._behind(source):
            self._bind(slot, source)

    def _step_before(self, slot: Slot) -> int:
        results = [other for other in self._working.slots if other.place == "result" and other.end <= slot.start]
        return results[-1].step

    def _bound(self, slot: Slot, steps: int) -> Source:
        """Return where a number comes from, of what is known after some steps; its own value if it never changes."""
        known = range(min(steps, len(self._depends)))
        computed = {
            self._same[k] for k in known if self._depends[k] and self._working.calculations[k].result == slot.value
        }
        candidates: list[Source] = [*([slot.value] if slot.value in self._free else []), *sorted(computed)]
        if not candidates:
            return slot.value
        if len(candidates) > 1 or slot.value in self._fixed or not slot.plain:
            for candidate in candidates:
                self._doubts |= self._behind(candidate)
        if slot.place == "literal":
            self._sources[slot] = candidates[0]
        return candidates[0]

    def _bind(self, slot: Slot, source: Source) -> None:
        self._sources[slot] = source
        if not slot.plain:
            self._doubts |= self._behind(source)

    def _behind(self, source: Source) -> frozenset[Fraction]:
        if isinstance(source, int):
            return self._depends[source]
        return frozenset({source} & self._free)


def _is_count(value: Fraction) -> bool:
    return value.denominator == 1 and value > 1


def _check_exact(working: Working) -> None:
    if not working.calculations:
        raise DataError("the solution has no annotations")
    for calculation in working.calculations:
        try:
            exact = calculation.run(calculation.literals)[-1] == calculation.result
        except ZeroDivisionError:
            exact = False
        if not exact:
            raise DataError("an annotation of the solution is not exact")
    final = [slot.value for slot in working.slots if slot.place == "final"]
    if final != [working.calculations[-1].result]:
        raise DataError("the answer is not the last result")


def _check_origins(given: Sequence[Numeral], implied: set[Fraction], working: Working) -> None:
    """Refuse a problem that gives a number which the solution does not use, or uses one that it does not give.

    An unused number may say over again what others say, and would contradict them when they change.
    """
    known = set(implied)
    for numeral in given:
        known |= _forms(numeral)
    results: set[Fraction] = set()
    used: set[Fraction] = set()
    for slot in working.slots:
        if slot.place == "literal":
            used.add(slot.value)
            if slot.value not in known | results:
                raise DataError("the solution uses a number that the question does not give")
        elif slot.place == "result":
            results.add(slot.value)
        elif slot.place == "text" and slot.value not in known | results:
            computed_later = any(c.result == slot.value for c in working.calculations[: slot.step + 1])
            if not computed_later:
                raise DataError("the solution shows a number that the question does not give")
    if any((numeral.plain or numeral.percent) and not _forms(numeral) & used for numeral in given):
        raise DataError("the question gives a number that the solution does not use")


def _forms(numeral: Numeral) -> set[Fraction]:
    """Return the values under which a number of the question may appear in the solution."""
    value = numeral.value
    if not numeral.percent:
        return {value}
    return {value, value / 100, 1 - value / 100, 1 + value / 100, 100 - value, 100 + value}


def _eligible(question: str, given: Sequence[Numeral], implied: set[Fraction], working: Working) -> set[Fraction]:
    """Return the numbers of the question that might change, each given once and used as nothing else."""
    occurrences = Counter(numeral.value for numeral in given)
    uses = Counter(slot.value for slot in working.slots if slot.place == "literal")
    constants = {slot.value for slot in working.slots if slot.place == "literal"} - set(occurrences)
    lists = any(sentence.count(",") + sentence.count(" and ") >= 3 for sentence in question.split(". "))
    values = [numeral.value for numeral in given]
    return {
        numeral.value
        for numeral in given
        if numeral.plain
        and numeral.value >= _SMALLEST
        and numeral.value not in implied
        and occurrences[numeral.value] == 1
        and not (numeral.value <= _SMALL and (lists or uses[numeral.value] > 1))
        and not _made_of_others(numeral.value, values)
        and not any(_related(numeral.value, constant) for constant in constants)
    }


def _made_of_others(value: Fraction, values: Sequence[Fraction]) -> bool:
    """Whether a number is what two others of the question come to, so that it may only say it over again."""
    others = [v for v in values if v != value]
    return any(
        value in (a + b, a - b, a * b) or (b != 0 and value == a / b)
        for i, a in enumerate(others)
        for j, b in enumerate(others)
        if i != j
    )


def _related(value: Fraction, constant: Fraction) -> bool:
    """Whether a number that the question does not give may have been made of one that it gives, in somebody's head."""
    return constant in (value - 1, value + 1, 2 * value, value / 2, value * 100, value / 100, 1 / value, 1 - 1 / value)
