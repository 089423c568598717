"""How well solutions read: a slot for a judge, or for people, since no count can tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trajgym.evaluation.evaluate import Evaluation
from trajgym.types import Task

__all__ = ["CRITERION", "Rater", "judged"]

CRITERION = "Each step follows from the ones before it, and a reader can check the solution without further help."
"""For ``Judge(ask, CRITERION)``; whether the answer is right is measured elsewhere."""


class Rater(Protocol):
    """What :class:`trajgym.rewards.judge.Judge` is to us."""

    def ratings(self, episodes: Sequence[tuple[Task, str]]) -> list[float]:
        """Return a grade in [0, 1] for each pair of a task and the policy's own words."""


def judged(evaluation: Evaluation, judge: Rater) -> dict[tuple[str, int], float]:
    """Return the judge's grade of each valid episode, by (task id, attempt).

    Args:
        evaluation: What was played.
        judge: Is shown the policy's own words of all turns, and no tool's answer.

    Raises:
        EnvironmentFault: When the judge is out of order.
    """
    played = [(i, t) for i, t in enumerate(evaluation.trajectories) if t.valid]
    words = [(t.task, "\n".join(step.action.text for step in t.steps)) for _, t in played]
    grades = judge.ratings(words) if words else []
    return {(t.task.id, i % evaluation.attempts): grade for (i, t), grade in zip(played, grades, strict=True)}
