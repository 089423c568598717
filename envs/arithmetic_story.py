"""Tells one procedural problem: draws the numbers, words the steps, keeps the books.

>>> story = Story(seeded("a", 1), steps=2, distractor=False)
>>> len(story.expressions), story.results[-1] == str(story.value)
(2, True)
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
from collections.abc import Sequence
from typing import TypeVar

from trajgym.envs.arithmetic_people import PEOPLE_DOMAINS
from trajgym.envs.arithmetic_scenes import SCENE_DOMAINS
from trajgym.envs.arithmetic_wording import DISTRACTORS, PEOPLE, WORD_NUMBERS, Holder

__all__ = ["DOMAINS", "Story", "seeded"]

T = TypeVar("T")

DOMAINS = PEOPLE_DOMAINS + SCENE_DOMAINS

_LARGEST = 999  # no number of a problem is larger
_MOST_MOVES = 3  # changes of holder in one story, so that the reader can follow
_MOST_SWAPS = 2  # and of what is counted
_TEST_SHARE = 8  # one problem in so many belongs to the test split


def seeded(*parts: object) -> random.Random:
    """Return a generator seeded by these parts, the same in every process (unlike with ``hash``)."""
    return random.Random(_hash(*parts))


class Story:
    """One problem, told from the first sentence to the question.

    Args:
        rng: Decides everything. Only ``random()`` is used: Python fixes its values across versions.
        steps: How often the quantity changes.
        distractor: Whether to add a sentence whose number does not matter.
    """

    def __init__(self, rng: random.Random, steps: int, *, distractor: bool) -> None:
        self._rng = rng
        domain = self._pick(DOMAINS)
        cast = self._pick(domain.casts)
        self._cast = self._some(cast.holders, _MOST_MOVES + 1)
        self._holder, *self._holders = self._cast
        self._thing, *self._things = self._some(cast.things, _MOST_SWAPS + 1)
        self._pronoun_fits = False
        self._before = ""
        self._told: list[str] = []
        self._normal: list[str] = []
        self.results: list[str] = []
        self.expressions: list[str] = []

        place = int(rng.random() * (steps + 2)) if distractor else -1
        self.value = self._two_digits(range(2, 300))
        for sentence in range(steps + 2):
            if sentence == place:
                self._distract(cast.things)
            if sentence == 0:
                self._tell(self._pick(domain.start), self.value)
            elif sentence <= steps:
                self._change(domain.steps, last=sentence == steps)
            else:
                self._tell(self._pick(domain.ask), None)

    @property
    def text(self) -> str:
        """The question."""
        return re.sub(r"(?:^|[.?] )[a-z]", lambda start: start[0].upper(), " ".join(self._told))

    @property
    def split(self) -> str:
        """Where the problem belongs: the same for other names and things, and with or without a distractor."""
        return "test" if _hash(*self._normal) % _TEST_SHARE == 0 else "train"

    def _change(self, wordings: dict[str, tuple[str, ...]], *, last: bool) -> None:
        """Take one step: an operation, a wording for it, a number."""
        for op in self._some(tuple(wordings), len(wordings)):
            numbers = _operands(op, self.value, last=last)
            fitting = [text for text in wordings[op] if numbers and self._fits(text, numbers)]
            if fitting:  # always true for one of + and -
                break
        text = self._pick(fitting)
        n = _word_number(text) or (self._two_digits(numbers) if isinstance(numbers, range) else self._pick(numbers))
        self._tell(text, n)
        self.expressions.append(f"{self.value}{op}{n}")
        self.value = {"+": self.value + n, "-": self.value - n, "*": self.value * n, "/": self.value // n}[op]
        self.results.append(str(self.value))

    def _fits(self, text: str, numbers: Sequence[int]) -> bool:
        word = _word_number(text)
        return (
            text != self._before  # no sentence twice in a row
            and (word is None or word in numbers)
            and ("{B}" not in text or bool(self._holders))
            and ("{others}" not in text or bool(self._things))
        )

    def _tell(self, wording: str, n: int | None) -> None:
        """Add a sentence, and to the normal form the same without names, pronouns and things."""
        me = self._holder
        pronoun = self._pronoun_fits and self._rng.random() < (0.4 if me.he == "it" else 0.5)
        new = self._holders[0] if self._holders else me
        other = self._things[0] if self._things else self._thing
        spoken = me if pronoun else Holder(me.name, me.name, me.name, me.his)
        self._told.append(
            wording.format(
                A=me.name,
                s=spoken.he,
                o=spoken.him,
                his=spoken.his,
                B=new.name,
                things=self._thing,
                others=other,
                n=n,
            )
        )
        self._normal.append(wording.format(A="X", B="X", s="X", o="X", his="X", things="T", others="T", n=n))
        self._before = wording
        self._pronoun_fits = "{B}" not in wording  # else it could mean either of the two
        if "{B}" in wording:
            self._holder = self._holders.pop(0)
        if "{others}" in wording:
            self._thing = self._things.pop(0)

    def _distract(self, things: Sequence[str]) -> None:
        counted = set(things)
        fitting = [text for text in DISTRACTORS if not counted & set(re.findall(r"\w+", text))]
        strangers = [person.name for person in PEOPLE if person not in self._cast]
        self._told.append(self._pick(fitting).format(C=self._pick(strangers), n=self._two_digits(range(2, 61))))
        self._pronoun_fits = False

    def _pick(self, items: Sequence[T]) -> T:
        return items[int(self._rng.random() * len(items))]

    def _some(self, items: Sequence[T], most: int) -> list[T]:
        """Pick up to so many items, none twice, in random order."""
        rest = list(items)
        return [rest.pop(int(self._rng.random() * len(rest))) for _ in items[:most]]

    def _two_digits(self, numbers: range) -> int:
        """Pick a number; four out of five times one of two digits, if there are any."""
        preferred = range(max(10, numbers.start), min(100, numbers.stop))
        return self._pick(preferred if preferred and self._rng.random() < 0.8 else numbers)


def _operands(op: str, value: int, *, last: bool) -> range | list[int]:
    """Return the numbers a step may use; until the last step at least two things are left, for the sake of grammar."""
    match op:
        case "+":
            return range(2, min(300, _LARGEST - value) + 1)
        case "-":
            return range(2, value - (0 if last else 2) + 1)
        case "*":
            return range(2, min(9, _LARGEST // value) + 1)
        case _:
            return [n for n in range(2, 13) if value % n == 0 and (last or value // n >= 2)]


@functools.cache
def _word_number(wording: str) -> int | None:
    """Return the number that a wording has in words, ``None`` if it has it in digits."""
    if "{n}" in wording:
        return None
    (number,) = (WORD_NUMBERS[word] for word in re.findall(r"\w+", wording.lower()) if word in WORD_NUMBERS)
    return number


def _hash(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest(), "big")
