"""Procedural programming problems: endless, seeded, with demonstrations and a held-out split.

Each problem has one number as its answer, and a demonstration of one to three programs for a Python interpreter that
keeps its names from call to call. A task id such as ``code/test/prime_sum/918273`` (split, kind, seed) says everything:
the same id gives the same problem on every platform.

>>> task = CodeTasks("test").get("code/test/prime_sum/8")
>>> len(task.solution), task.difficulty, CodeTasks("test").get(task.id) == task
(2, 1, True)
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from types import MappingProxyType

import numpy as np

from trajgym.envs import (
    code_arrays,
    code_counting,
    code_dates,
    code_numbers,
    code_sequences,
    code_simulation,
    code_symbols,
    code_tables,
    code_text,
)
from trajgym.envs.arithmetic_story import seeded
from trajgym.envs.code_problem import Draw, Kind, Problem
from trajgym.envs.procedural import SEEDS, read_seed, read_split
from trajgym.envs.tasks import TaskSource, read_levels
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.types import ExpertTurn, Task, ToolCall

__all__ = ["KINDS", "CodeTasks"]

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        kind.name: kind
        for group in (
            code_numbers,
            code_sequences,
            code_counting,
            code_simulation,
            code_text,
            code_dates,
            code_tables,
            code_arrays,
            code_symbols,
        )
        for kind in group.KINDS
    }
)
"""All kinds of problems by name."""

_LEVELS = 3
_TEST_SHARE = 1 / 8
_LISTED = 5  # how many ids an error names


class CodeTasks(TaskSource):
    """Problems that need a program, made up as they are asked for.

    A level is drawn first, then a kind of that level, each uniformly. The two splits share no problem: a hash of the
    kind and of the programs that solve it, in which nothing of the wording is left, decides where a problem belongs
    (1 in 8 is test).

    Args:
        split: ``"train"`` or ``"test"``.
        difficulty: Level, or the lowest and the highest level: 1 takes one short loop, 2 nested loops or several steps,
            3 numpy, sympy or several programs that build on one another.
        kinds: Names from :data:`KINDS`; every kind of these levels when left out.

    Raises:
        UnknownNameError: For another split, or a kind that does not exist.
        ConfigError: For other levels, no kind at all, or a kind of another level.
    """

    def __init__(
        self,
        split: str = "train",
        difficulty: int | tuple[int, int] = (1, _LEVELS),
        kinds: Iterable[str] | None = None,
    ) -> None:
        self.split = read_split(split)
        self.difficulty = read_levels(difficulty, highest=_LEVELS)
        self.kinds = _kinds(kinds, self.difficulty)

    def __repr__(self) -> str:
        return f"CodeTasks({self.split!r}, difficulty={self.difficulty}, kinds={self.kinds})"

    def sample(self, rng: np.random.Generator) -> Task:
        """Draw a level, a kind of that level, and a problem of that kind."""
        levels = sorted({KINDS[name].level for name in self.kinds})
        level = levels[int(rng.integers(len(levels)))]
        names = [name for name in self.kinds if KINDS[name].level == level]
        name = names[int(rng.integers(len(names)))]
        return _generate(self.split, KINDS[name], int(rng.integers(SEEDS)))

    def get(self, task_id: str) -> Task:
        """Make the problem with this id again.

        Raises:
            UnknownNameError: When the id is of another split, kind or level, or is not an id at all.
        """
        stem, seed = read_seed(task_id)
        kinds = {f"code/{self.split}/{name}": KINDS[name] for name in self.kinds}
        if stem not in kinds or seed is None:
            known = [f"{stem}/0" for stem in kinds]
            close = difflib.get_close_matches(str(task_id), known, n=_LISTED, cutoff=0.5) or known[:_LISTED]
            hint = (
                f"(These are ids of {len(close)} of {len(known)} kinds. The last number is a seed below {SEEDS}; "
                "split=, difficulty= and kinds= decide the others.)"
            )
            raise UnknownNameError("task id", task_id, close, hint)
        return _generate(self.split, kinds[stem], seed)


def _generate(split: str, kind: Kind, seed: int) -> Task:
    """Draw from one sub-seed after the other until a problem suits and belongs to the split."""
    draws = (Draw(seeded("code", split, kind.name, seed, attempt)) for attempt in itertools.count())
    made = (kind.make(draw) for draw in draws)
    problem = next(p for p in made if p is not None and _split(kind, p) == split and not _stated(p))
    calls = [ExpertTurn(calls=(ToolCall("python", {"code": program}),)) for program in problem.programs]
    return Task(
        id=f"code/{split}/{kind.name}/{seed}",
        question=problem.question,
        answer=str(problem.answer),
        solution=(*calls, ExpertTurn(f"#### {problem.answer}")),
        difficulty=kind.level,
        metadata={"kind": kind.name, "group": kind.group},
    )


def _split(kind: Kind, problem: Problem) -> str:
    """Where the problem belongs, however it is worded."""
    return "test" if seeded(kind.name, *problem.programs).random() < _TEST_SHARE else "train"


def _stated(problem: Problem) -> bool:
    """Whether the answer stands in the question, where it could be guessed; a sign is left out of account."""
    answer = abs(Fraction(problem.answer))
    return any(Fraction(number) == answer for number in re.findall(r"\d+(?:\.\d+)?", problem.question))


def _kinds(kinds: Iterable[str] | None, difficulty: tuple[int, int]) -> tuple[str, ...]:
    """Return the names of the chosen kinds in the order of :data:`KINDS`."""
    low, high = difficulty
    if kinds is None:
        return tuple(kind.name for kind in KINDS.values() if low <= kind.level <= high)
    if isinstance(kinds, str) or not isinstance(kinds, Iterable):
        raise ConfigError(f"kinds= takes several names, such as ('prime_sum', 'lamps'), got {kinds!r}.")
    chosen = list(kinds)
    if not chosen:
        raise ConfigError("kinds= is empty. Name at least one kind, or leave it out for all of them.")
    for name in chosen:
        if not isinstance(name, str) or name not in KINDS:
            raise UnknownNameError("kind of problem", name, KINDS, "Choose them with kinds=.")
        if not low <= KINDS[name].level <= high:
            raise ConfigError(
                f"kinds= names {name!r}, which is of level {KINDS[name].level}, but difficulty= asks for levels from "
                f"{low} to {high}."
            )
    return tuple(name for name in KINDS if name in chosen)
