"""Terms for the calls of a turn: well written, run, new, of use, and not too many.

Pure functions of the step and the steps before it. Those that pay are worth having only within bounds: each says how
it could be farmed, and the catalogue offers it with a cap. Costs and penalties are at most 0, so weights stay positive.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from trajgym.errors import RewardError
from trajgym.rewards.answer import read
from trajgym.rewards.functions import RewardTerm, term
from trajgym.rewards.lengths import CountTokens, check_unit, length
from trajgym.rewards.milestones import all_numbers, milestones, numbers_in, one_number
from trajgym.rewards.terms import accuracy
from trajgym.types import Step, Task, ToolCall, ToolResult

__all__ = [
    "DEFAULT_CAP",
    "LengthCost",
    "call_cost",
    "call_ran",
    "call_valid",
    "milestone",
    "needed_steps",
    "needless_repeat",
    "result_used",
    "tool_success",
    "written_numbers",
]

DEFAULT_CAP = 3
"""Paid steps per episode where the task does not say how many it needs."""

_write = json.JSONEncoder(sort_keys=True, default=str).encode  # json.dumps would make an encoder for each call


def needed_steps(task: Task) -> float:
    """Return how many turns with calls the task needs; a cap for terms that pay such turns.

    As many as its demonstration has; without one its difficulty, and :data:`DEFAULT_CAP` where that is unknown too.
    """
    if task.solution:
        return sum(bool(turn.calls) for turn in task.solution)
    return DEFAULT_CAP if task.difficulty is None else task.difficulty


@term
def tool_success(step: Step, task: Task, history: Sequence[Step]) -> float:
    """1 for a step in which a tool call succeeded that had not succeeded before, else 0.

    At most :func:`needed_steps` steps of an episode are paid, so calling for the sake of calling does not add up.
    """
    now = _successes(step)
    if not now:
        return 0.0
    seen: set[str] = set()
    paid = 0
    for earlier in history:
        new = _successes(earlier) - seen
        paid += bool(new)
        seen |= new
    return float(paid < needed_steps(task) and bool(now - seen))


@term
def call_valid(step: Step, task: Task, history: Sequence[Step]) -> float:
    """1 for a turn with calls of which every one could be read and had arguments that its tool takes, else 0.

    Any call at all earns it, so it needs a cap.
    """
    return float(bool(step.action.calls) and step.error is None)


@term
def call_ran(step: Step, task: Task, history: Sequence[Step]) -> float:
    """1 for a turn with calls of which every one was run without an error, else 0. Needs a cap, as above."""
    return float(bool(step.results) and step.error is None and all(r.error is None for r in step.results))


@term
def result_used(step: Step, task: Task, history: Sequence[Step]) -> float:
    """1 for a turn that makes use of the result of an earlier call, else 0.

    A result can be used when the call succeeded, its whole content is one number, and that number was news: it stood
    neither in the question nor in anything the policy had written by then, the call included. The turn uses it when

    - the number stands in the arguments of a call together with another number (alone, it was merely passed on), or
    - the turn answers with it, and the answer is right (alone in a wrong answer, it was merely copied).

    Signs are left out of account, and a result is used once. Chains of pointless calls use results too, so it needs a
    cap.
    """
    said = numbers_in(task.question)
    unused: set[Fraction] = set()
    for earlier in history:
        unused -= _used(earlier, task)
        said |= written_numbers(earlier)
        unused |= {v for v in map(_value, earlier.results) if v is not None and v not in said}
    return float(bool(unused & _used(step, task)))


@term
def milestone(step: Step, task: Task, history: Sequence[Step]) -> float:
    """The share of the values on the task's way that calls of this turn were the first to compute, in [0, 1].

    All of an episode's sum to at most 1. A value counts when it is the whole content of a result and the call did not
    hold it already. Only an episode's first ``2n`` calls count where the way has n values, or trying out everything
    would find them. Tasks without known intermediate values pay nothing; see :mod:`trajgym.rewards.milestones`.
    """
    wanted = milestones(task)
    left = 2 * len(wanted)
    reached: set[Fraction] = set()
    for turn in (*history, step):
        found = {v for r in turn.results[:left] if (v := _value(r)) is not None and v not in set(_numbers_of(r.call))}
        left -= min(left, len(turn.results))
        new = (found & wanted) - reached
        reached |= new
    return len(new) / len(wanted) if wanted else 0.0


@term
def needless_repeat(step: Step, task: Task, history: Sequence[Step]) -> float:
    """−1 for each call of this turn that had been made with the same arguments and the same outcome before, else 0.

    A call whose outcome has changed, as one that reads a file may, is not needless.
    """
    seen = {_outcome(result) for earlier in history for result in earlier.results}
    repeats = 0
    for result in step.results:
        key = _outcome(result)
        repeats += key in seen
        seen.add(key)
    return float(-repeats)


@term
def call_cost(step: Step, task: Task, history: Sequence[Step]) -> float:
    """−1 for each call of this turn. Weigh it lightly: a policy that never calls pays nothing."""
    return float(-len(step.action.calls))


class LengthCost(RewardTerm):
    """−1 for each token or character of this turn, whatever the answer. Weigh it lightly, as above.

    Args:
        unit: ``"tokens"`` or ``"characters"``.
        count: Counts the tokens of a text; see :func:`trajgym.rewards.lengths.length`.

    Raises:
        ConfigError: For another unit.
    """

    def __init__(self, unit: str = "tokens", count: CountTokens | None = None) -> None:
        check_unit(unit, count)
        self.unit, self.count = unit, count

    def score(self, step: Step, task: Task, history: Sequence[Step]) -> float:
        """Return the cost, at most 0, of ``step``."""
        return float(-length((step,), self.unit, self.count))


def written_numbers(step: Step) -> set[Fraction]:
    """Return the numbers that the policy wrote in a turn, its calls included, without their signs."""
    return numbers_in(step.action.text).union(*(_numbers_of(call) for call in step.action.calls))


def _used(step: Step, task: Task) -> set[Fraction]:
    """Return the numbers a turn works with: those that its calls combine, and its answer if that is right."""
    used: set[Fraction] = set()
    for call in step.action.calls:
        numbers = list(_numbers_of(call))
        if len(numbers) > 1:
            used.update(numbers)
    return used | _right_answer(step, task)


def _right_answer(step: Step, task: Task) -> set[Fraction]:
    try:
        right = accuracy(step, task, ())
    except RewardError:  # the task has no number as its answer
        return set()
    value = read(step.action.text).value if right else None
    return set() if value is None else {abs(value)}


def _numbers_of(call: ToolCall) -> Iterator[Fraction]:
    """Yield every number in a call's arguments, equal ones as often as they are written."""
    waiting: list[Any] = [call.arguments]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)
        elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
            yield from all_numbers(str(value))


def _value(result: ToolResult) -> Fraction | None:
    return one_number(result.content) if result.error is None else None


def _successes(step: Step) -> set[str]:
    return {_key(result) for result in step.results if result.error is None}


def _key(result: ToolResult) -> str:
    return _write([result.call.name, result.call.arguments])


def _outcome(result: ToolResult) -> tuple[str, str, str | None]:
    return _key(result), result.content, result.error
