"""Reward terms: the right answer, and calls that got somewhere, neither of them for sale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.rewards.terms import DEFAULT_CAP, accuracy, tool_success
from trajgym.types import Action, Message, Observation, Step, StopReason, Task, ToolCall, ToolResult

TASK = Task("sum", "48 + 24?", "72")


def said(text: str, reason: StopReason | None = StopReason.ANSWERED) -> Step:
    return Step(Action(text), Observation((Message("tool", "#### 72"),)), stop_reason=reason)


def called(*expressions: Any, error: str | None = None, name: str = "calculator") -> Step:
    results = (ToolResult(ToolCall(name, {"expression": e}), "72", error) for e in expressions)
    return Step(Action("…"), Observation(), results=tuple(results))


def paid(steps: list[Step], task: Task = TASK) -> list[float]:
    return [tool_success(step, task, steps[:i]) for i, step in enumerate(steps)]


def of_difficulty(steps: int | None) -> Task:
    return Task("sum", "?", "72", difficulty=steps)


@pytest.mark.parametrize(
    ("text", "value"), [("#### 72", 1.0), ("So it is 72.", 1.0), ("#### 72.0", 1.0), ("#### 73", 0.0), ("", 0.0)]
)
def test_accuracy_is_the_final_answers(text: str, value: float) -> None:
    assert accuracy(said(text), TASK, []) == value


@pytest.mark.parametrize("reason", [None, *(r for r in StopReason if r is not StopReason.ANSWERED)])
def test_what_is_not_a_final_answer_is_worth_nothing(reason: StopReason | None) -> None:
    assert accuracy(said("#### 72", reason), TASK, []) == 0.0


def test_a_tools_output_is_not_the_policys_word() -> None:
    assert accuracy(said("I do not know."), TASK, []) == 0.0


def test_each_step_with_a_new_success_is_paid_once() -> None:
    assert paid([called("1+1"), called("1+1"), called("2+2", "1+1"), called("3+3", "4+4")]) == [1.0, 0.0, 1.0, 1.0]


def test_a_step_counts_once_however_much_succeeded_in_it() -> None:
    assert paid([called("1", "2"), called("3", "4"), called("5")], of_difficulty(2)) == [1.0, 1.0, 0.0]


def test_errors_pay_nothing_and_use_nothing_up() -> None:
    assert paid([called("1/0", error="division_by_zero"), called(), said("hm"), called("1/0")]) == [0.0, 0.0, 0.0, 1.0]


def test_the_same_arguments_of_another_tool_are_new_and_their_order_is_not() -> None:
    assert paid([called("1"), called("1", name="python"), called(1)]) == [1.0, 1.0, 1.0]

    def two(arguments: Mapping[str, Any]) -> Step:
        return Step(Action(""), Observation(), results=(ToolResult(ToolCall("f", arguments), "1"),))

    assert paid([two({"a": 1, "b": 2}), two({"b": 2, "a": 1})]) == [1.0, 0.0]


@pytest.mark.parametrize(("difficulty", "most"), [(0, 0), (1, 1), (2, 2), (None, DEFAULT_CAP)])
def test_no_more_steps_are_paid_than_the_task_needs(difficulty: int | None, most: int) -> None:
    values = paid([called(f"{i}+1") for i in range(9)], of_difficulty(difficulty))
    assert values == [1.0] * most + [0.0] * (9 - most)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=3), max_size=8),
    st.none() | st.integers(0, 4),
)
def test_no_order_of_calls_earns_more_than_the_cap(plan: list[list[tuple[int, bool]]], difficulty: int | None) -> None:
    steps = []
    for turn in plan:
        results = tuple(ToolResult(ToolCall("f", {"x": x}), "", None if good else "bad") for x, good in turn)
        steps.append(Step(Action(""), Observation(), results=results))
    values = paid(steps, of_difficulty(difficulty))
    successes = {x for turn in plan for x, good in turn if good}
    assert set(values) <= {0.0, 1.0}
    assert sum(values) <= min(DEFAULT_CAP if difficulty is None else difficulty, len(successes))
    if successes and difficulty != 0:
        assert sum(values) >= 1
