"""Procedural questions to an office of many tools: endless, seeded, with a demonstration and a held-out split.

A task id such as ``choice/test/12/3/918273`` (split, tools, level, seed) says everything: the same id gives the same
question and the same answers of all tools on every platform.

>>> task = ChoiceTasks("test", 12).get("choice/test/12/3/7")
>>> [call.name.partition("_")[0] for turn in task.solution for call in turn.calls][0]
'enter'
"""

from __future__ import annotations

import itertools
import random
import zlib

from trajgym.envs.choice_office import BLOCK, CATALOGUE, ITEMS, Office
from trajgym.envs.procedural import SPLITS, ProceduralTasks
from trajgym.errors import ConfigError
from trajgym.types import ExpertTurn, Task, ToolCall

__all__ = ["LEVELS", "ChoiceTasks", "plan", "tools_needed"]

LEVELS = 3

_TEST_SHARE = 8  # one question in so many belongs to the test split


def tools_needed(level: int) -> int:
    """Return how many tools an office must have for questions of a level."""
    return {0: 1, 1: 1, 2: BLOCK - 1, 3: BLOCK}[level]


class ChoiceTasks(ProceduralTasks):
    """Questions that one of many tools answers, made up as they are asked for.

    Level 0 says the answer in the question: no tool is needed. Level 1 takes the one right tool. Level 2 takes a tool
    that works once its place is open: two calls. Level 3 takes one that also wants what another one has answered: three
    calls. A hash of what is asked, and of what, decides to which split a question belongs (1 in 8 is test).

    Args:
        split: ``"train"`` or ``"test"``.
        tools_count: How many tools there are, from 1 to 60.
        difficulty: Level from 0 to 3, or the lowest and the highest; from 1 as high as the tools allow when left out.

    Raises:
        UnknownNameError: For another split.
        ConfigError: For levels outside these bounds, or that need more tools.
    """

    family = "choice"
    deciding = "split=, tools_count= and difficulty="

    def __init__(
        self, split: str = "train", tools_count: int = 12, difficulty: int | tuple[int, int] | None = None
    ) -> None:
        if isinstance(tools_count, bool) or not isinstance(tools_count, int) or not 1 <= tools_count <= len(CATALOGUE):
            raise ConfigError(f"tools_count= must be a whole number from 1 to {len(CATALOGUE)}, got {tools_count!r}.")
        possible = max(level for level in range(LEVELS + 1) if tools_needed(level) <= tools_count)
        super().__init__(split, (1, possible) if difficulty is None else difficulty, lowest=0, highest=LEVELS)
        self.tools_count = tools_count
        if self.difficulty[1] > possible:
            raise ConfigError(
                f"Questions of level {self.difficulty[1]} need {tools_needed(self.difficulty[1])} tools, got "
                f"tools_count={tools_count}. Raise it, or lower difficulty=."
            )

    def __repr__(self) -> str:
        return f"ChoiceTasks({self.split!r}, tools_count={self.tools_count}, difficulty={self.difficulty})"

    def stem(self, level: int) -> str:
        """Return what stands before the seed in the ids of a level."""
        return f"{self.family}/{self.split}/{self.tools_count}/{level}"

    def make(self, level: int, seed: int) -> Task:
        """Draw questions from one sub-seed after the other until one belongs to the split."""
        tools = CATALOGUE[: self.tools_count]
        ending = {0: "get_", 1: "get_", 2: "_code", 3: "_box"}[level]
        fitting = [name for name in tools if ending in name]
        for attempt in itertools.count():
            rng = random.Random(f"{self.split}/{self.tools_count}/{level}/{seed}/{attempt}")
            name, item = fitting[int(rng.random() * len(fitting))], ITEMS[int(rng.random() * len(ITEMS))]
            office = int(rng.random() * 2**31)
            if SPLITS[zlib.crc32(f"{name}/{item}".encode()) % _TEST_SHARE == 0] == self.split:
                break
        return _task(f"{self.stem(level)}/{seed}", level, name, item, office)


def plan(task: Task, tool: str = "delegate") -> tuple[ExpertTurn, ...]:
    """Return a planner's demonstration of a task: what to delegate in which order, then the answer.

    A question of level 3 becomes two, the second of which needs what the first one has found.

    Args:
        task: One of :class:`ChoiceTasks`.
        tool: Name of the tool that takes a ``subtask``.
    """
    name, item = task.metadata["tool"], task.metadata["item"]
    office, kind = Office.of(task), name.partition("_")[0]
    asked = [task.question]
    if name.endswith("_box"):
        code = office.number(f"{kind}_code", item)
        asked = [_question(f"{kind}_code", item), f"What does the {kind}'s box {code} hold?"]
    calls = [ToolCall(tool, {"subtask": question}) for question in (asked if task.difficulty else [])]
    return (*(ExpertTurn(calls=(call,)) for call in calls), ExpertTurn(f"#### {task.answer}"))


def _question(name: str, item: str) -> str:
    kind, _, rest = name.partition("_")
    if kind == "get":
        return f"What is the {rest} of the {item}?"
    if rest == "code":
        return f"What is the {item}'s code in the {kind}?"
    return f"What does the {kind}'s box with the {item}'s code hold?"


def _task(task_id: str, level: int, name: str, item: str, seed: int) -> Task:
    office, kind = Office(seed), name.partition("_")[0]
    question, calls = _question(name, item), [ToolCall(name, {"item": item})]
    answer = office.number(name, item)
    if level == 0:
        question, calls = f"The {name.removeprefix('get_')} of the {item} is {answer}. {question}", []
    elif level >= 2:
        code = office.number(f"{kind}_code", item)
        calls = [ToolCall(f"enter_{kind}"), ToolCall(f"{kind}_code", {"item": item})]
        if level == 3:
            calls.append(ToolCall(name, {"code": code}))
            answer = office.number(name, code)
    return Task(
        id=task_id,
        question=question,
        answer=answer,
        solution=(*(ExpertTurn(calls=(call,)) for call in calls), ExpertTurn(f"#### {answer}")),
        difficulty=level,
        metadata={"office": seed, "tool": name, "item": item},
    )
