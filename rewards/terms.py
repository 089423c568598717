"""Terms for the answer and for how the solution is written.

What depends on style pays only when the answer is right: a short, well laid out or step-by-step wrong answer is
worth as much as any other wrong answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trajgym.errors import ConfigError, DataError, RewardError
from trajgym.rewards.answer import read
from trajgym.rewards.answer_kinds import answer_kind, grade
from trajgym.rewards.functions import RewardTerm, is_finite, term
from trajgym.rewards.lengths import CountTokens, check_unit, length
from trajgym.rewards.steps import check_step_mode, count_steps
from trajgym.types import Step, StopReason, Task

__all__ = ["LengthPenalty", "StepBonus", "accuracy", "format_kept", "strict_accuracy"]


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

    def __init__(
        self,
        target_length: int = 200,
        penalty_weight: float = 0.001,
        *,
        unit: str = "characters",
        count: CountTokens | None = None,
        most: float = 1.0,
    ) -> None:
        check_unit(unit, count)
        _from_zero(target_length=target_length, penalty_weight=penalty_weight)
        if not (isinstance(most, (int, float)) and most >= 0.0):
            raise ConfigError(f"most must be a number of at least 0, got {most!r}.")
        self.target_length, self.penalty_weight, self.most = target_length, penalty_weight, most
        self.unit, self.count = unit, count

    def score(self, step: Step, task: Task, history: Sequence[Step]) -> float:
        """Return the penalty, at most 0, of the turn that answers."""
        if not accuracy(step, task, history):
            return 0.0
        excess = max(0, length((*history, step), self.unit, self.count) - self.target_length)
        return 0.0 - min(self.most, self.penalty_weight * excess)


class StepBonus(RewardTerm):
    r"""Pays ``step_bonus`` for each step that the solution shows, with a right answer only.

    Args:
        step_bonus: Bonus per step, β.
        mode: How steps are told: ``"markers"``, ``"lines"`` or ``"regex"``; see
            :func:`trajgym.rewards.steps.count_steps`.
        pattern: Regular expression for ``"regex"``.
        most: Most steps that are paid: five, since more are seldom needed and easily padded.

    Raises:
        ConfigError: For a value that is not allowed.

    >>> StepBonus()(["Step 1: half of 48 is 24\nStep 2: 48 + 24 = 72\n#### 72"], answer=["72"])
    [0.2]
    """

    def __init__(
        self,
        step_bonus: float = 0.1,
        *,
        mode: str = "markers",
        pattern: str | re.Pattern[str] | None = None,
        most: int = 5,
    ) -> None:
        check_step_mode(mode, pattern)
        _from_zero(step_bonus=step_bonus, most=most)
        self.step_bonus, self.mode, self.pattern, self.most = step_bonus, mode, pattern, most

    def score(self, step: Step, task: Task, history: Sequence[Step]) -> float:
        """Return the bonus of the turn that answers."""
        if not accuracy(step, task, history):
            return 0.0
        said = "\n".join(s.action.text for s in (*history, step))
        return self.step_bonus * min(self.most, count_steps(said, self.mode, self.pattern))


def _from_zero(**values: float) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not is_finite(value) or value < 0:
            raise ConfigError(f"{name} must be a finite number of at least 0, got {value!r}.")
