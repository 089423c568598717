"""Reward terms that ship with the package.

Each is a pure function of one step, its task and the steps before it. What can be repeated for gain is paid
once, and what is paid per step is capped by the number of steps the task needs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from trajgym.errors import DataError, RewardError
from trajgym.rewards.answer import correct
from trajgym.types import Step, StopReason, Task, ToolResult

__all__ = ["DEFAULT_CAP", "accuracy", "tool_success"]

DEFAULT_CAP = 3
"""Paid steps per episode where the task does not say how many it needs."""


def accuracy(step: Step, task: Task, history: Sequence[Step]) -> float:
    """1 for a final answer that equals the ground truth, else 0.

    Only the policy's own words count: a tool result that holds the answer pays nothing until it is said, and an
    episode that a budget has cut pays nothing at all.

    Raises:
        RewardError: When the ground truth is not a number.
    """
    if step.stop_reason is not StopReason.ANSWERED:
        return 0.0
    try:
        return float(correct(step.action.text, task.answer))
    except DataError as error:
        raise RewardError(
            f"accuracy compares numbers, and the answer of task {task.id!r} is {task.answer!r}. Give a number, or pass "
            'a rubric of your own: reward={"accuracy": (lambda step, task, history: …, 1.0)}.'
        ) from error


def tool_success(step: Step, task: Task, history: Sequence[Step]) -> float:
    """1 for a step in which a tool call succeeded that had not succeeded before, else 0.

    At most ``task.difficulty`` steps of an episode are paid (:data:`DEFAULT_CAP` where it is unknown), so calling
    for the sake of calling does not add up.
    """
    seen: set[str] = set()
    paid = 0
    for earlier in history:
        new = _successes(earlier) - seen
        paid += bool(new)
        seen |= new
    cap = DEFAULT_CAP if task.difficulty is None else task.difficulty
    return float(paid < cap and bool(_successes(step) - seen))


def _successes(step: Step) -> set[str]:
    return {_key(result) for result in step.results if result.error is None}


def _key(result: ToolResult) -> str:
    return json.dumps([result.call.name, result.call.arguments], sort_keys=True, default=str)
