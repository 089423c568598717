"""Whether a model has learned to solve, or to recognise: the same tasks, changed so that the way to solve them stays.

A change is any callable ``Task -> Task | None``; ``None`` leaves a task out, since it cannot be changed safely.

>>> task = Task("t-0", "Tim has 3 boxes of 4 pens. How many pens are there?", "12")
>>> add_distractor(task).question
'Tim has 3 boxes of 4 pens. The nearest train station is 56 kilometres away. How many pens are there?'
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from trajgym.errors import ConfigError
from trajgym.evaluation.compare import Comparison, compare
from trajgym.evaluation.samples import Sample
from trajgym.evaluation.working import numbers_given
from trajgym.rewards.milestones import numbers_in
from trajgym.types import Task

__all__ = ["Change", "Forgetting", "add_distractor", "changed", "check_forgetting", "compare_changed", "paraphrase"]

Change: TypeAlias = Callable[[Task], Task | None]

# Each says something true of the scene's surroundings that nothing in a word problem counts.
_DISTRACTORS = (
    "The shop around the corner has been open for {} years.",
    "On the same day, {} people walked past the town hall.",
    "The library across the street has {} windows.",
    "A bus with the number {} stops nearby.",
    "The nearest train station is {} kilometres away.",
    "An old tree in the park is {} years old.",
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"“])")


def add_distractor(task: Task) -> Task | None:
    """Return the task with a sentence before its last one whose number does not matter.

    The number is none that the question or the answer knows; sentence and number depend on the task's id alone. It is
    flagged in ``metadata["distractors"]``. A task whose question has one sentence only gets it in front.
    """
    draw = random.Random(f"distractor/{task.id}")
    known = numbers_given(task.question).all | numbers_in(task.answer)
    number = next(n for n in iter(lambda: draw.randrange(13, 98), None) if n not in known)
    sentence = draw.choice(_DISTRACTORS).format(number)
    parts = _SENTENCE.split(task.question.strip())
    question = " ".join([*parts[:-1], sentence, parts[-1]])
    metadata = {**task.metadata, "distractors": [*task.metadata.get("distractors", ()), str(number)]}
    return dataclasses.replace(task, question=question, metadata=metadata)


def paraphrase(write: Callable[[str], str]) -> Change:
    """Return a change that puts questions in other words.

    Args:
        write: Turns a question into another wording, by a model for example. A wording that does not hold the same
            numbers in digits or as words, or that is blank or the same, is not used.
    """

    def change(task: Task) -> Task | None:
        question = write(task.question).strip()
        same = " ".join(question.casefold().split()) == " ".join(task.question.casefold().split())
        if not question or same or numbers_given(question).numerals != numbers_given(task.question).numerals:
            return None
        return dataclasses.replace(task, question=question)

    return change


def changed(tasks: Sequence[Task], change: Change, name: str) -> list[tuple[Task, Task]]:
    """Return each task that can be changed with its changed twin, whose id ends in ``#name``.

    Args:
        tasks: What to change.
        change: How.
        name: What to call it; ``metadata["change"]`` and ``metadata["origin"]`` of a twin say where it comes from.

    Raises:
        ConfigError: When none of the tasks can be changed, or a change returns something else.
    """
    pairs = []
    for task in tasks:
        twin = change(task)
        if twin is None:
            continue
        if not isinstance(twin, Task):
            raise ConfigError(f"The change {name!r} must return a Task or None, got {type(twin).__name__}.")
        metadata = {**twin.metadata, "change": name, "origin": task.id}
        pairs.append((task, dataclasses.replace(twin, id=f"{task.id}#{name}", metadata=metadata)))
    if not pairs:
        raise ConfigError(f"The change {name!r} can be applied to none of the {len(tasks)} tasks. Choose other tasks.")
    return pairs


def compare_changed(name: str, original: Sequence[Sample], twins: Sequence[Sample], *, seed: int = 0) -> Comparison:
    """Compare a model with itself: on tasks, and on their changed twins.

    Args:
        name: Of the change.
        original: Samples of the tasks; those without a twin are left out.
        twins: Samples of the changed tasks.
        seed: Decides the draws of the bootstrap.

    Raises:
        ConfigError: When a twin's task was not played.
    """
    back = [dataclasses.replace(s, task_id=s.task_id.removesuffix(f"#{name}")) for s in twins]
    wanted = {s.task_id for s in back}
    return compare(("as given", [s for s in original if s.task_id in wanted]), (name, back), seed=seed)


@dataclass(frozen=True)
class Forgetting:
    """What training has done to tasks it was not about.

    Args:
        comparison: On these tasks, before and after the training.
        tolerance: Loss of accuracy, in [0, 1], that is put up with.
    """

    comparison: Comparison
    tolerance: float

    @property
    def forgot(self) -> bool:
        """Whether the loss is clearly more than chance, and more than is put up with."""
        return self.comparison.significant and -self.comparison.difference > self.tolerance

    @property
    def unknown(self) -> bool:
        """Whether a loss beyond the tolerance can neither be seen nor be ruled out: there are too few tasks."""
        return not self.forgot and self.comparison.low < -self.tolerance


def check_forgetting(
    before: tuple[str, Sequence[Sample]], after: tuple[str, Sequence[Sample]], *, tolerance: float = 0.02, seed: int = 0
) -> Forgetting:
    """Check that a trained model still solves what it could solve before.

    Args:
        before: Name and samples of the model before training, on tasks of another kind.
        after: Name and samples of the trained model on the same tasks.
        tolerance: Loss of accuracy that is put up with.
        seed: Decides the draws of the bootstrap.

    Raises:
        ConfigError: When the tolerance lies outside of [0, 1], or the tasks are not the same.
    """
    if not 0 <= tolerance <= 1:
        raise ConfigError(f"tolerance must lie between 0 and 1, got {tolerance}.")
    return Forgetting(compare(before, after, seed=seed), tolerance)
