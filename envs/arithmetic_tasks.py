"""Procedural word problems: endless, seeded, with worked solutions and a held-out split.

A problem is the story of one quantity: a first sentence gives it, each step's sentence changes it, a question asks for
it. A task id such as ``arithmetic/test/3/918273`` (split, steps, seed) says everything: the same id gives the same
problem on every platform. Odd seeds carry a distractor, a sentence whose number does not matter; even ones do not.

>>> task = ArithmeticTasks("test").get("arithmetic/test/2/8")
>>> len(task.solution), task.difficulty, ArithmeticTasks("test").get(task.id) == task
(3, 2, True)
"""

from __future__ import annotations

import itertools

import numpy as np

from trajgym.envs.arithmetic_story import Story, seeded
from trajgym.envs.procedural import SEEDS, ProceduralTasks
from trajgym.errors import ConfigError
from trajgym.types import ExpertTurn, Task, ToolCall

__all__ = ["ArithmeticTasks", "held_out"]

_MOST_STEPS = 8


class ArithmeticTasks(ProceduralTasks):
    """Word problems of one to eight steps, made up as they are asked for.

    Every number is a whole number from 0 to 999, intermediate results included. The two splits share no problem: a
    hash of the wording and the numbers, names and things left out, decides where a problem belongs (1 in 8 is test).

    Args:
        split: ``"train"`` or ``"test"``.
        difficulty: Number of steps (1 to 8), or the lowest and the highest number; drawn uniformly.
        distractors: Share of problems, in [0, 1], with a sentence whose number does not matter.

    Raises:
        UnknownNameError: For another split.
        ConfigError: For a difficulty or a share outside these bounds.
    """

    family = "arithmetic"

    def __init__(
        self, split: str = "train", difficulty: int | tuple[int, int] = (1, 4), distractors: float = 0.3
    ) -> None:
        super().__init__(split, difficulty, highest=_MOST_STEPS, level="number of steps")
        self.distractors = _share(distractors)

    def __repr__(self) -> str:
        return f"ArithmeticTasks({self.split!r}, difficulty={self.difficulty}, distractors={self.distractors})"

    def draw_seed(self, rng: np.random.Generator) -> int:
        """Draw a seed, an odd one as often as there are to be distractors."""
        return 2 * int(rng.integers(SEEDS // 2)) + int(rng.random() < self.distractors)

    def make(self, level: int, seed: int) -> Task:
        """Tell stories from one sub-seed after the other until one belongs to the split."""
        for attempt in itertools.count():
            story = Story(seeded(self.split, level, seed, attempt), level, distractor=seed % 2 == 1)
            if story.split == self.split:
                break
        calls = [ExpertTurn(calls=(ToolCall("calculator", {"expression": e}),)) for e in story.expressions]
        answer = str(story.value)
        return Task(
            id=f"{self.stem(level)}/{seed}",
            question=story.text,
            answer=answer,
            solution=(*calls, ExpertTurn(f"#### {answer}")),
            difficulty=level,
            metadata={"steps": story.results},
        )


def held_out(
    n: int, difficulty: int | tuple[int, int] = (1, 4), seed: int = 0, *, distractors: float = 0.3
) -> list[Task]:
    """Make a fixed set of test problems.

    Args:
        n: How many, at least 1. The first n of a larger set are the same.
        difficulty: Number of steps, or the lowest and the highest number; each is as frequent as the others.
        seed: Another seed gives another set.
        distractors: Share of problems with a distractor.

    Returns:
        ``n`` tasks of the test split, no question twice, the difficulties taking turns.

    Raises:
        ConfigError: When an argument is out of bounds.
    """
    source = ArithmeticTasks("test", difficulty, distractors)
    low, high = source.difficulty
    if not _is_int(n) or n < 1:
        raise ConfigError(f"n= must be a whole number from 1, got {n!r}.")
    if not _is_int(seed):
        raise ConfigError(f"seed= must be a whole number, got {seed!r}.")
    rng = seeded("held out", seed)
    tasks: dict[str, Task] = {}
    while len(tasks) < n:
        drawn = 2 * int(rng.random() * (SEEDS // 2)) + int(rng.random() < source.distractors)
        task = source.make(low + len(tasks) % (high + 1 - low), drawn)
        tasks.setdefault(task.question, task)
    return list(tasks.values())


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _share(distractors: float) -> float:
    is_number = isinstance(distractors, (int, float, np.floating)) and not isinstance(distractors, bool)
    share = float(distractors) if is_number else -1.0
    if not 0.0 <= share <= 1.0:
        raise ConfigError(f"distractors= must be a share from 0 to 1, got {distractors!r}.")
    return share
