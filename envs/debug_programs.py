"""Small programs and what can be wrong with each: one line, changed in a way that people get wrong.

No program has a loop whose end depends on what it computes, so one that is broken still ends.

>>> program = PROGRAMS["count_above"]
>>> program.right(k=7).splitlines()[3]
'        if value > 7:'
>>> program.wrong(program.bugs[0], k=7).splitlines()[3]
'        if value >= 7:'
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["BUG_KINDS", "PROGRAMS", "Bug", "Program"]

Inputs: TypeAlias = Callable[[random.Random, int], tuple[Any, ...]]
"""Draws the arguments of a call, given k."""

BUG_KINDS = ("boundary", "comparison", "operator", "start", "variable", "order")
"""What can be wrong: a range's end, a comparison, an operator, a start value, a name, or where a line stands."""


@dataclass(frozen=True)
class Bug:
    """A change of one line.

    Args:
        kind: One of :data:`BUG_KINDS`.
        line: Which line, from 1.
        text: What it says instead; ``K`` stands for the constant.
        topic: What to look up about it.
    """

    kind: str
    line: int
    text: str
    topic: str


@dataclass(frozen=True)
class Program:
    """A function, what it must return, and its bugs.

    Args:
        name: Of the function.
        spec: What it returns; ``K`` stands for the constant.
        source: The file, likewise.
        draw: Draws arguments.
        bugs: What can be wrong.
        constant: The lowest and the highest K.
    """

    name: str
    spec: str
    source: str
    draw: Inputs
    bugs: tuple[Bug, ...]
    constant: tuple[int, int] = (2, 9)

    def right(self, k: int) -> str:
        """Return the file without a bug."""
        return self.source.replace("K", str(k))

    def wrong(self, bug: Bug, k: int) -> str:
        """Return the file with a bug."""
        lines = self.source.split("\n")
        lines[bug.line - 1] = bug.text
        return "\n".join(lines).replace("K", str(k))


def _whole(rng: random.Random, low: int, high: int) -> int:
    return low + int(rng.random() * (high - low + 1))  # Python fixes the values of random() across versions


def _list(rng: random.Random, k: int, low: int = 0, high: int = 12, least: int = 4) -> tuple[list[int]]:
    """Draw a list with values around k, so that comparisons with it matter."""
    values = [_whole(rng, low, high) for _ in range(_whole(rng, least, 8))]
    return ([k if rng.random() < 0.2 else value for value in values],)


def _number(rng: random.Random, k: int) -> tuple[int]:
    return (k * _whole(rng, 2, 12) + (_whole(rng, 0, k - 1) if rng.random() < 0.5 else 0),)


def _digits(rng: random.Random, k: int) -> tuple[int]:
    return (_whole(rng, 1_000, 99_999),)


def _words(rng: random.Random, k: int) -> tuple[str]:
    words = ["abcdefghij"[: _whole(rng, 1, 10)] for _ in range(_whole(rng, 4, 8))]
    return (" ".join(word if rng.random() < 0.7 else "abcdefghij"[:k] for word in words),)


def _brackets(rng: random.Random, k: int) -> tuple[str]:
    out, depth = "", 0
    for _ in range(_whole(rng, 6, 14)):
        opens = depth == 0 or rng.random() < 0.55
        depth += 1 if opens else -1
        out += "(" if opens else ")"
    return (out + ")" * depth,)


def _table(rng: random.Random, k: int) -> tuple[list[list[int]]]:
    size = _whole(rng, 3, 4)
    return ([[_whole(rng, 1, 9) for _ in range(size)] for _ in range(size)],)


_ALL = (
    Program(
        "count_above",
        "how many of the values are greater than K",
        "def count_above(values):\n    count = 0\n    for value in values:\n        if value > K:\n"
        "            count += 1\n    return count",
        _list,
        (
            Bug("comparison", 4, "        if value >= K:", "comparison"),
            Bug("start", 2, "    count = 1", "counting"),
            Bug("operator", 5, "            count += value", "counting"),
            Bug("order", 6, "        return count", "return"),
        ),
    ),
    Program(
        "sum_multiples",
        "the sum of the multiples of K from 1 to n, n included",
        "def sum_multiples(n):\n    total = 0\n    for number in range(1, n + 1):\n        if number % K == 0:\n"
        "            total += number\n    return total",
        _number,
        (
            Bug("boundary", 3, "    for number in range(1, n):", "range"),
            Bug("operator", 4, "        if number // K == 0:", "operators"),
            Bug("variable", 5, "            total += n", "loops"),
            Bug("comparison", 4, "        if number % K != 0:", "comparison"),
        ),
    ),
    Program(
        "longest_run",
        "the length of the longest run of equal values",
        "def longest_run(values):\n    best = run = 1\n    for i in range(1, len(values)):\n"
        "        run = run + 1 if values[i] == values[i - 1] else 1\n        best = max(best, run)\n    return best",
        lambda rng, k: _list(rng, k, 0, 2),
        (
            Bug("boundary", 3, "    for i in range(1, len(values) - 1):", "range"),
            Bug("start", 4, "        run = run + 1 if values[i] == values[i - 1] else 0", "counting"),
            Bug("operator", 5, "        best = min(best, run)", "min and max"),
            Bug("variable", 6, "    return run", "loops"),
        ),
    ),
    Program(
        "largest_fall",
        "the largest fall from a value to a later one, 0 if there is none",
        "def largest_fall(values):\n    high = values[0]\n    fall = 0\n    for value in values:\n"
        "        fall = max(fall, high - value)\n        high = max(high, value)\n    return fall",
        _list,
        (
            Bug("operator", 5, "        fall = max(fall, high + value)", "operators"),
            Bug("operator", 6, "        high = min(high, value)", "min and max"),
            Bug("order", 7, "        return fall", "return"),
        ),
    ),
    Program(
        "weighted_digits",
        "the sum of n's digits, each times its place counted from 1 at the left",
        "def weighted_digits(n):\n    total = 0\n    for place, digit in enumerate(str(n), 1):\n"
        "        total += place * int(digit)\n    return total",
        _digits,
        (
            Bug("start", 3, "    for place, digit in enumerate(str(n)):", "enumerate"),
            Bug("operator", 4, "        total += place + int(digit)", "operators"),
            Bug("operator", 4, "        total = place * int(digit)", "counting"),
        ),
    ),
    Program(
        "pairs_with_sum",
        "how many pairs of values at different places add up to K",
        "def pairs_with_sum(values):\n    count = 0\n    for i in range(len(values)):\n"
        "        for j in range(i + 1, len(values)):\n            if values[i] + values[j] == K:\n"
        "                count += 1\n    return count",
        lambda rng, k: _list(rng, k, 0, k, 5),
        (
            Bug("boundary", 4, "        for j in range(i, len(values)):", "range"),
            Bug("variable", 5, "            if values[i] + values[i] == K:", "loops"),
            Bug("comparison", 5, "            if values[i] + values[j] >= K:", "comparison"),
            Bug("boundary", 4, "        for j in range(len(values)):", "range"),
        ),
        (4, 9),
    ),
    Program(
        "window_highs",
        "the sum of the highest values of all windows of K neighbours",
        "def window_highs(values):\n    total = 0\n    for i in range(len(values) - K + 1):\n"
        "        total += max(values[i:i + K])\n    return total",
        lambda rng, k: _list(rng, k, 0, 12, 5),
        (
            Bug("boundary", 3, "    for i in range(len(values) - K):", "range"),
            Bug("boundary", 4, "        total += max(values[i:i + K - 1])", "slices"),
            Bug("operator", 4, "        total += min(values[i:i + K])", "min and max"),
        ),
        (2, 4),
    ),
    Program(
        "polynomial",
        "the value at K of the polynomial with these coefficients, highest power first",
        "def polynomial(coefficients):\n    value = 0\n    for coefficient in coefficients:\n"
        "        value = value * K + coefficient\n    return value",
        lambda rng, k: _list(rng, k, 1, 9, 3),
        (
            Bug("operator", 4, "        value = value + K * coefficient", "operators"),
            Bug("start", 2, "    value = 1", "counting"),
            Bug("order", 5, "        return value", "return"),
        ),
        (2, 5),
    ),
    Program(
        "long_words",
        "how many words of the text have at least K letters",
        "def long_words(text):\n    count = 0\n    for word in text.split():\n        if len(word) >= K:\n"
        "            count += 1\n    return count",
        _words,
        (
            Bug("comparison", 4, "        if len(word) > K:", "comparison"),
            Bug("comparison", 4, "        if len(word) < K:", "comparison"),
            Bug("variable", 4, "        if len(text) >= K:", "loops"),
        ),
        (3, 7),
    ),
    Program(
        "deepest",
        "how many brackets are open where most of them are",
        "def deepest(text):\n    depth = most = 0\n    for sign in text:\n"
        "        depth += 1 if sign == '(' else -1\n        most = max(most, depth)\n    return most",
        _brackets,
        (
            Bug("operator", 4, "        depth += 1 if sign == '(' else 0", "operators"),
            Bug("comparison", 4, "        depth += 1 if sign == ')' else -1", "comparison"),
            Bug("variable", 6, "    return depth", "loops"),
        ),
    ),
    Program(
        "other_diagonal",
        "the sum along the diagonal from the top right to the bottom left",
        "def other_diagonal(table):\n    total = 0\n    for i in range(len(table)):\n"
        "        total += table[i][len(table) - 1 - i]\n    return total",
        _table,
        (
            Bug("variable", 4, "        total += table[i][i]", "indices"),
            Bug("boundary", 3, "    for i in range(1, len(table)):", "range"),
            Bug("operator", 4, "        total -= table[i][len(table) - 1 - i]", "operators"),
        ),
    ),
    Program(
        "alternating",
        "the first value minus the second plus the third and so on",
        "def alternating(values):\n    total = 0\n    for i, value in enumerate(values):\n"
        "        total += value if i % 2 == 0 else -value\n    return total",
        _list,
        (
            Bug("start", 3, "    for i, value in enumerate(values, 1):", "enumerate"),
            Bug("comparison", 4, "        total += value if i % 2 == 1 else -value", "comparison"),
            Bug("operator", 4, "        total += value if i % 3 == 0 else -value", "operators"),
        ),
    ),
)

PROGRAMS = {program.name: program for program in _ALL}
"""Every program by its function's name."""
