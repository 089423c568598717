"""Terms for the answer and for how the solution is written.

What depends on style pays only when the answer is right: a short, well laid out or step-by-step wrong answer is
worth as much as any other wrong answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction

from trajgym.errors import ConfigError, DataError, RewardError
from trajgym.rewards.answer import read
from trajgym.rewards.answer_kinds import answer_kind, grade
from trajgym.rewards.functions import RewardTerm, is_number, term
from trajgym.rewards.lengths import CountTokens, check_unit, length
from trajgym.rewards.milestones import milestones, numbers_in
from trajgym.rewards.steps import check_step_mode, shown_steps
from trajgym.types import Step, StopReason, Task

__all__ = ["LengthPenalty", "StepBonus", "accuracy", "format_kept", "strict_accuracy"]

_MOST_GUESSES = 10  # numbers in a solution's steps that neither the question nor its demonstration knows


@term
def accuracy(step: Step, task: Task, history: Sequence[Step]) -> float:
    """1 for a final answer that equals the ground truth, else 0.

    Only the policy's own words count: a tool result that holds the answer pays nothing until it is said, and an
    episode that a budget has cut pays nothing at all.

    Raises:
        RewardError: When the ground truth is neither a number nor, for a task with the metadata
            ``answer_kind: expression``, an expression.
    """
    if step.stop_reason is not StopReason.ANSWERED:
        return 0.0
    try:
        return float(grade(step.action.text, task.answer, answer_kind(task)).correct)
    except DataError as error:
        raise RewardError(
            f"accuracy cannot compare with the answer of task {task.id!r}, {task.answer!r}. Give a number, or an "
            'expression and metadata={"answer_kind": "expression"}, or pass a rubric of your own: '
            'reward={"accuracy": (lambda step, task, history: …, 1.0)}.'
        ) from error


@term
def strict_accuracy(step: Step, task: Task, history: Sequence[Step]) -> float:
    """1 for a right final answer that stands behind an explicit marker such as ``####``, else 0."""
    return float(bool(accuracy(step, task, history)) and read(step.action.text).marked)


@term
def format_kept(step: Step, task: Task, history: Sequence[Step]) -> float:
    """1 for a right answer behind a marker, in an episode in which every call was written as the protocol asks."""
    return float(all(s.error is None for s in (*history, step)) and strict_accuracy(step, task, history))


@dataclass(frozen=True)
class LengthPenalty(RewardTerm):
    """Takes ``penalty_weight`` for each unit of length above the target, from a right answer only.

    ``−min(most, penalty_weight · max(0, l − target_length))``, where ``l`` is the length of everything the policy wrote
    in the episode. With accuracy at a weight of 1, ``most = 1`` keeps a right answer from being worth less than a
    wrong one; ``most=float("inf")`` leaves the penalty without a floor.

    Args:
        target_length: Length that is free, in units.
        penalty_weight: Penalty per unit, α.
        unit: ``"characters"`` or ``"tokens"``.
        count: Counts the tokens of a text; see :func:`trajgym.rewards.lengths.length`.
        most: Largest penalty of an episode.

    Raises:
        ConfigError: For a value that is not allowed.

    >>> LengthPenalty()(["#### 72".rjust(500), "#### 72"], answer=["72", "72"])
    [-0.3, 0.0]
    """

    target_length: int = 200
    penalty_weight: float = 0.001
    _: KW_ONLY
    unit: str = "characters"
    count: CountTokens | None = None
    most: float = 1.0

    def __post_init__(self) -> None:
        check_unit(self.unit, self.count)
        _from_zero(target_length=self.target_length, penalty_weight=self.penalty_weight)
        if self.most != math.inf:
            _from_zero(most=self.most)

    def score(self, step: Step, task: Task, history: Sequence[Step]) -> float:
        """Return the penalty, at most 0, of the turn that answers."""
        if not accuracy(step, task, history):
            return 0.0
        excess = max(0, length((*history, step), self.unit, self.count) - self.target_length)
        return 0.0 - min(self.most, self.penalty_weight * excess)


@dataclass(frozen=True)
class StepBonus(RewardTerm):
    r"""Pays ``step_bonus`` for each step that the solution shows, with a right answer only.

    Where a task comes with a demonstration, as in every environment here, a step counts only if it shows a value on the
    way to the answer that no earlier step has shown: one that the demonstration goes through, and neither the question
    nor the answer is. What says nothing of that kind is padding, and a list of guesses shows nothing.

    Args:
        step_bonus: Bonus per step, β.
        mode: How steps are told: ``"markers"``, ``"lines"`` or ``"regex"``; see
            :func:`trajgym.rewards.steps.shown_steps`.
        pattern: Regular expression for ``"regex"``.
        most: Most steps that are paid: five, since more are seldom needed and easily padded.

    Raises:
        ConfigError: For a value that is not allowed.

    >>> StepBonus()(["Step 1: half of 48 is 24\nStep 2: 48 + 24 = 72\n#### 72"], answer=["72"])
    [0.2]
    """

    step_bonus: float = 0.1
    _: KW_ONLY
    mode: str = "markers"
    pattern: str | re.Pattern[str] | None = None
    most: int = 5

    def __post_init__(self) -> None:
        check_step_mode(self.mode, self.pattern)
        _from_zero(step_bonus=self.step_bonus, most=self.most)

    def score(self, step: Step, task: Task, history: Sequence[Step]) -> float:
        """Return the bonus of the turn that answers."""
        if not accuracy(step, task, history):
            return 0.0
        shown = shown_steps("\n".join(s.action.text for s in (*history, step)), self.mode, self.pattern)
        return self.step_bonus * min(self.most, _that_show_values(shown, task) if task.solution else len(shown))


def _that_show_values(steps: Sequence[str], task: Task) -> int:
    """Return how many steps show a value on the way to the answer that none before them has shown."""
    given = numbers_in(task.question) | numbers_in(task.answer)
    wanted = milestones(task) - given
    found, guesses = 0, set[Fraction]()
    for text in steps:
        numbers = numbers_in(text)
        guesses |= numbers - wanted - given
        found += bool(numbers & wanted)
        wanted, given = wanted - numbers, given | (numbers & wanted)
    return found if len(guesses) <= _MOST_GUESSES else 0


def _from_zero(**values: float) -> None:
    for name, value in values.items():
        if not is_number(value) or value < 0:
            raise ConfigError(f"{name} must be a finite number of at least 0, got {value!r}.")
