"""Procedural debugging tasks: endless, seeded, with a demonstration and a held-out split.

A task id such as ``debug/test/918273`` (split, seed) says everything: the same id gives the same file, bug and tests on
every platform.

>>> task = DebugTasks("test").get("debug/test/7")
>>> task.metadata["program"]["function"] in task.question, DebugTasks("test").get(task.id) == task
(True, True)
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from trajgym.envs.debug_programs import BUG_KINDS, PROGRAMS, Bug, Program
from trajgym.envs.procedural import SEEDS, SPLITS, read_seed, read_split
from trajgym.envs.tasks import TaskSource
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.types import ExpertTurn, Task, ToolCall

__all__ = ["DebugTasks", "solution"]

VISIBLE, HIDDEN = 4, 6
"""How many tests a task shows, and how many decide."""

_TEST_SHARE = 8  # one file with its bug in so many belongs to the test split


class DebugTasks(TaskSource):
    """Files with one wrong line, made up as they are asked for.

    Of the tests, at least one that is shown and two that are hidden fail, and the question's answer is not what the
    broken file says. A hash of file and constant decides to which split a task belongs (1 in 8 is test), so the test
    split has files that no training task has.

    Args:
        split: ``"train"`` or ``"test"``.
        bugs: Kinds from :data:`trajgym.envs.debug_programs.BUG_KINDS`; all when left out.

    Raises:
        UnknownNameError: For another split or kind.
        ConfigError: When no kind is given.
    """

    def __init__(self, split: str = "train", bugs: Iterable[str] | None = None) -> None:
        self.split = read_split(split)
        self.bugs = BUG_KINDS if bugs is None else tuple(dict.fromkeys([bugs] if isinstance(bugs, str) else bugs))
        for kind in self.bugs:
            if kind not in BUG_KINDS:
                raise UnknownNameError("kind of bug", kind, BUG_KINDS)
        if not self.bugs:
            raise ConfigError(f"bugs= names no kind. Leave it out for all: {', '.join(BUG_KINDS)}.")

    def __repr__(self) -> str:
        return f"DebugTasks({self.split!r}, bugs={self.bugs})"

    def sample(self, rng: np.random.Generator) -> Task:
        """Draw a task; kinds that were not asked for are passed over."""
        while True:
            task = _generate(self.split, int(rng.integers(SEEDS)))
            if task.metadata["bug"] in self.bugs:
                return task

    def get(self, task_id: str) -> Task:
        """Make the task with this id again.

        Raises:
            UnknownNameError: When the id is of another split or kind of bug, or is not an id at all.
        """
        stem, seed = read_seed(task_id)
        task = _generate(self.split, seed) if stem == f"debug/{self.split}" and seed is not None else None
        if task is None or task.metadata["bug"] not in self.bugs:
            hint = f"The number is a seed below {SEEDS}; split= decides the other part, and bugs= what is in it."
            raise UnknownNameError("task id", task_id, [f"debug/{self.split}/0"], hint)
        return task


def solution(program: Program, bug: Bug, k: int, asked: str, answer: int) -> tuple[ExpertTurn, ...]:
    """Return the demonstration: read, test, look up, mend, test again, evaluate, answer."""
    calls = (
        ToolCall("read_file"),
        ToolCall("run_tests"),
        ToolCall("docs", {"topic": bug.topic}),
        ToolCall("replace_line", {"line": bug.line, "text": program.right(k).split("\n")[bug.line - 1]}),
        ToolCall("run_tests"),
        ToolCall("evaluate", {"expression": asked}),
    )
    return (*(ExpertTurn(calls=(call,)) for call in calls), ExpertTurn(f"#### {answer}"))


def _generate(split: str, seed: int) -> Task:
    """Build tasks from one sub-seed after the other until one belongs to the split and shows its bug."""
    for attempt in itertools.count():
        rng = random.Random(f"{split}/{seed}/{attempt}")  # a text seeds alike in every process
        program = list(PROGRAMS.values())[int(rng.random() * len(PROGRAMS))]
        low, high = program.constant
        k = low + int(rng.random() * (high - low + 1))
        bug = program.bugs[int(rng.random() * len(program.bugs))]
        if SPLITS[zlib.crc32(program.right(k).encode()) % _TEST_SHARE == 0] != split:
            continue
        cases = _cases(rng, program, bug, k)
        if cases is not None:
            return _task(f"debug/{split}/{seed}", program, bug, k, cases)
    raise AssertionError("itertools.count() has no end")


def _cases(rng: random.Random, program: Program, bug: Bug, k: int) -> list[tuple[tuple[Any, ...], int, bool]] | None:
    """Draw arguments, what the right file returns, and whether the wrong one differs: tests first, then the question.

    ``None`` where the bug shows too seldom for a task.
    """
    right, wrong = _function(program.name, program.right(k)), _function(program.name, program.wrong(bug, k))
    drawn: dict[str, tuple[tuple[Any, ...], int, bool]] = {}
    for _ in range(60):
        arguments = program.draw(rng, k)
        expected = right(*arguments)
        drawn.setdefault(json.dumps(arguments), (arguments, expected, _value(wrong, arguments) != expected))
    failing = [case for case in drawn.values() if case[2]]
    passing = [case for case in drawn.values() if not case[2]]
    shown = 1 + int(rng.random() * 3)
    shown = max(shown, VISIBLE - len(passing))  # where the bug always shows, all of them fail
    visible = failing[:shown] + passing[: VISIBLE - shown]
    hidden = [case for case in drawn.values() if case not in visible]
    asked = next((case for case in reversed(hidden) if case[2]), None)
    hidden = [case for case in hidden if case is not asked][:HIDDEN]
    if asked is None or len(visible) < VISIBLE or len(hidden) < HIDDEN or sum(case[2] for case in hidden) < 2:
        return None
    if len({case[1] for case in hidden}) < 3:  # or a file that returns one number whatever it is given would pass
        return None
    return [*visible, *hidden, asked]


def _task(task_id: str, program: Program, bug: Bug, k: int, cases: list[tuple[tuple[Any, ...], int, bool]]) -> Task:
    *tests, (arguments, answer, _) = cases
    asked = f"{program.name}({', '.join(map(json.dumps, arguments))})"
    spec = program.spec.replace("K", str(k))
    plain = [{"arguments": list(given), "expected": expected} for given, expected, _ in tests]
    return Task(
        id=task_id,
        question=f"{program.name} must return {spec}, but one line is wrong. Mend it. What is {asked} then?",
        answer=str(answer),
        solution=solution(program, bug, k, asked, answer),
        difficulty=1,
        metadata={
            "bug": bug.kind,
            "program": {
                "function": program.name,
                "spec": spec,
                "source": program.wrong(bug, k),
                "visible": plain[:VISIBLE],
                "hidden": plain[VISIBLE:],
                "passing": sum(not case[2] for case in tests[:VISIBLE]),
            },
        },
    )


@functools.cache
def _function(name: str, source: str) -> Callable[..., int]:
    """Return a function of one of our own programs, which are harmless and come to an end."""
    namespace: dict[str, Any] = {}
    exec(compile(source, f"<{name}>", "exec"), namespace)  # noqa: S102  # the table above is all that gets here
    function: Callable[..., int] = namespace[name]
    return function


def _value(function: Callable[..., int], arguments: tuple[Any, ...]) -> int | str:
    try:
        return function(*arguments)
    except Exception as error:
        return type(error).__name__
