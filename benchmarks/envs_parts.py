"""The parts of the benchmark of environments: each asks every contender in turn and returns what was measured."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envs_driver import MIX
from envs_peers import Peak, PeerError, Process, watched
from rounds import interleave

__all__ = [
    "KINDS",
    "Counted",
    "Fleet",
    "Growth",
    "Single",
    "Slope",
    "count_lines",
    "fleets",
    "growth",
    "lines",
    "singles",
    "slopes",
    "slow",
]

KINDS = ("final", "calculator", "python")
EPISODE = ("calculator", "python", "python", "python", "final")  # of the many at once; before it, one of "final" alone
MIXED_EPISODE = ("python", "mixed")  # so that in the mixed step, the one that counts, the interpreters are there
GROWTH_EPISODE = ("calculator", "python", "python")  # after a final answer of episodes that called no tool
MOST_SECONDS = 60.0  # that the steps of one kind may take in a fleet of the growing ones
FROM = 64  # episodes at once, from which on cost has to grow linearly
LINEAR = 1.25  # times the cost per episode at FROM that is still linear: medians of a few passes differ by as much
LITTLE = 0.05  # megabytes per episode below which growth is noise
FILES = ("tool", "env", "episode")

Pair = Sequence[float]
"""Seconds of a step: on the wall, and of processors."""


@dataclass
class Single:
    """Seconds of single steps, by kind; each round gives several.

    Args:
        first: The first of an episode.
        later: Further ones of an episode, of a tool.
    """

    first: dict[str, list[Pair]] = field(default_factory=dict)
    later: dict[str, list[list[Pair]]] = field(default_factory=dict)


@dataclass
class Fleet:
    """Seconds of a step in many episodes at once, and what they used.

    Args:
        count: Episodes.
        final: Of each round, the final answer of an episode that called no tool.
        times: Of each round, one pair per step of :data:`EPISODE`; the last one also ends the interpreter, if any.
        mixed: Of each round, the step in which episodes call different tools or answer; none where a kind is lacking.
        peak: Memory and processes.
    """

    count: int
    final: list[Pair] = field(default_factory=list)
    times: list[list[Pair]] = field(default_factory=list)
    mixed: list[Pair] = field(default_factory=list)
    peak: Peak = field(default_factory=Peak)


@dataclass
class Growth:
    """One size of a growing fleet.

    Args:
        count: Episodes.
        times: By kind of step, seconds on the wall and of processors; the last call of an episode where several.
        megabytes: Memory of all the contender's processes.
        idle: The same before the episodes were opened.
        note: Why there are no figures, or some of them are missing.
    """

    count: int
    times: dict[str, Pair] = field(default_factory=dict)
    megabytes: float = 0.0
    idle: float = 0.0
    note: str = ""

    @property
    def each(self) -> float:
        """Megabytes that an episode adds."""
        return (self.megabytes - self.idle) / self.count


@dataclass(frozen=True)
class Slope:
    """What an episode costs among many, beside what it costs among few.

    Args:
        what: A kind of step, or memory.
        few, many: Episodes at once.
        ratio: Cost of an episode among many by that among few.
    """

    what: str
    few: int
    many: int
    ratio: float

    @property
    def linear(self) -> bool:
        """Whether cost grows no faster than the number of episodes."""
        return self.ratio <= LINEAR


@dataclass(frozen=True)
class Counted:
    """Lines of the three files, and what came of running them."""

    numbers: tuple[int, ...]
    outcome: str


def singles(contenders: Sequence[Process], rounds: int) -> dict[str, Single]:
    """Time single steps of every kind."""
    asked: dict[str, Callable[[], dict[str, Any]]] = {
        f"{one.name} {kind}": lambda one=one, kind=kind: one.attempt(do="steps", kind=kind)
        for one in contenders
        for kind in KINDS
        if kind not in one.lacks
    }
    answers = interleave(asked, rounds, warmup=1)
    out = {one.name: Single() for one in contenders}
    for name, rows in answers.items():
        contender, _, kind = name.partition(" ")
        if not all(rows):
            out.pop(contender, None)
        if contender not in out:
            continue
        out[contender].first[kind] = [row["first"] for row in rows]
        if kind != "final":
            out[contender].later[kind] = [row["later"] for row in rows]
    return out


def fleets(contenders: Sequence[Process], count: int, rounds: int) -> dict[str, Fleet]:
    """Time the steps of many episodes at once, then look at the memory that they use."""
    for one in contenders:
        one.attempt(do="open_fleet", count=count)
    asked: dict[str, Callable[[], dict[str, Any]]] = {
        f"{one.name} {name}": lambda one=one, kinds=kinds: one.attempt(do="fly", count=count, kinds=had(one, kinds))
        for one in contenders
        for name, kinds in (("answers", ("final",)), ("episodes", EPISODE), ("mixed", MIXED_EPISODE))
        if name != "mixed" or not one.lacks.keys() & set(MIX)
    }
    answers = interleave(asked, rounds, warmup=1)
    out = {}
    for one in contenders:
        peak = weighed(one, count, had(one, EPISODE[:-1]))
        one.attempt(do="close_fleet")
        if one.error:
            continue
        final, times, mixed = (
            [row["times"] for row in answers.get(f"{one.name} {name}", ())] for name in ("answers", "episodes", "mixed")
        )
        out[one.name] = Fleet(count, [pairs[0] for pairs in final], times, [pairs[-1] for pairs in mixed], peak)
    return out


def weighed(one: Process, count: int, kinds: Sequence[str]) -> Peak:
    """Return the most memory and processes in one flight, and when all its episodes have called their tools."""
    with watched(one.process.pid) as peak:
        one.attempt(do="fly", count=count, kinds=kinds)
    one.attempt(do="fly", count=count, kinds=["final"])
    return peak


def had(one: Process, kinds: Sequence[str]) -> list[str]:
    """Return the kinds of step that a contender has."""
    return [kind for kind in kinds if kind not in one.lacks]


def growth(
    contenders: Sequence[Process], sizes: Sequence[int], megabytes: float, passes: int = 3
) -> dict[str, list[Growth]]:
    """Open more and more episodes at once; sizes that would take too much memory or time are left out and say so.

    Args:
        contenders: Whose.
        sizes: How many, in growing order.
        megabytes: Most that one contender may take.
        passes: How often each kind of step is timed; the median counts.
    """
    out: dict[str, list[Growth]] = {one.name: [] for one in contenders}
    for count in sizes:
        for one in contenders:
            known = [row for row in out[one.name] if row.times]
            if one.error or (out[one.name] and not known):
                continue
            out[one.name].append(_size(one, count, known[-1] if known else None, megabytes, passes))
    return out


def _size(one: Process, count: int, before: Growth | None, megabytes: float, passes: int) -> Growth:
    row = Growth(count)
    if before is not None and (expected := before.idle + count * before.each) > megabytes:
        row.note = f"not run: {count:,} would take about {expected:,.0f} MB of memory, {megabytes:,.0f} are allowed"
        return row
    kinds = had(one, GROWTH_EPISODE)
    if before is not None:
        quick = [kind for kind, pair in before.times.items() if pair[0] * count * passes <= MOST_SECONDS]
        if left := sorted(set(kinds) - set(quick)):
            row.note = f"{' and '.join(left)} left out: {passes} passes would take more than {MOST_SECONDS:.0f} s"
        kinds = [kind for kind in kinds if kind in quick]
    idle = Peak()
    idle.look(one.process.pid)
    row.idle = idle.megabytes
    try:
        one.ask(do="open_fleet", count=count)
        times = []
        for _ in range(passes):
            answers = one.ask(do="fly", count=count, kinds=["final"])["times"]
            calls = one.ask(do="fly", count=count, kinds=kinds)["times"]
            one.ask(do="fly", count=count, kinds=["final"])
            times.append([*answers, *calls])
        row.megabytes = weighed(one, count, kinds).megabytes
        one.ask(do="close_fleet")
        if one.error:
            raise PeerError(one.error)
    except PeerError as error:
        row.note = one.error = f"failed: {error}"
        return row
    row.times = {kind: _middle([pair[place] for pair in times]) for place, kind in enumerate(["final", *kinds])}
    return row


def slopes(rows: Sequence[Growth]) -> list[Slope]:
    """Return how cost grows, from :data:`FROM` episodes at once, or the fewest above, to the most that there are.

    Times are compared on the wall and in processor time, and the one that grows faster counts. Memory is compared
    between sizes that took the same kinds of step, since an interpreter weighs more than all else; where an episode
    adds next to none, there is nothing to compare.
    """
    there = [row for row in rows if row.times and row.count >= FROM]
    if len(there) < 2:
        return []
    few, out = there[0], []
    for kind, before in few.times.items():
        many = [row for row in there if kind in row.times][-1]
        if many.count > few.count:
            ratio = max(after / first for after, first in zip(many.times[kind], before, strict=True))
            out.append(Slope(kind, few.count, many.count, ratio))
    alike = [row for row in there if row.times.keys() == few.times.keys()][-1]
    if alike.count > few.count and max(few.each, alike.each) > LITTLE:
        out.append(Slope("memory", few.count, alike.count, alike.each / max(few.each, LITTLE)))
    return out


def _middle(pairs: Sequence[Pair]) -> Pair:
    return [sorted(pair[side] for pair in pairs)[len(pairs) // 2] for side in (0, 1)]


def slow(contenders: Sequence[Process], rounds: int) -> dict[str, list[float]]:
    """Time four calls of a tool that takes 0.2 s."""
    asked: dict[str, Callable[[], dict[str, Any]]] = {
        one.name: lambda one=one: one.attempt(do="slow") for one in contenders
    }
    answers = interleave(asked, rounds, warmup=0)
    return {name: [row["seconds"][0] for row in rows] for name, rows in answers.items() if all(rows)}


def lines(contenders: Sequence[Process], folder: Path) -> dict[str, Counted]:
    """Count the lines of each contender's three files and run them."""
    out = {}
    for one in contenders:
        numbers = tuple(count_lines((folder / f"{one.name}_{file}.py").read_text(encoding="utf-8")) for file in FILES)
        try:
            outcome = judged(one.ask(do="lines", folder=str(folder), name=one.name))
        except PeerError as error:
            outcome = f"failed: {error}"
        out[one.name] = Counted(numbers, outcome)
    return out


def judged(answer: Mapping[str, Any]) -> str:
    """Say whether the three files did what they should: area 72, a question and its reward, and a reward at the end."""
    wrong = []
    if "72" not in answer["tool"]:
        wrong.append(f"the tool answered {answer['tool']!r}")
    if answer["env"] != ["What is 48 + 24?", 1.0]:
        wrong.append(f"the environment gave {answer['env']!r}")
    if answer["episode"] < 1.0:
        wrong.append(f"the episode was paid {answer['episode']}")
    return "; ".join(wrong) or "all run"


def count_lines(source: str) -> int:
    r"""Count the lines that hold code; blank ones, comments and the module's docstring are none.

    >>> count_lines('# why\n\nx = 1  # one\n')
    1
    """
    tree = ast.parse(source)
    about: set[int] = set()
    if ast.get_docstring(tree) is not None:
        about = set(range(tree.body[0].lineno, (tree.body[0].end_lineno or 0) + 1))
    counted = 0
    for number, line in enumerate(source.splitlines(), start=1):
        text = line.strip()
        counted += bool(text) and not text.startswith("#") and number not in about
    return counted
