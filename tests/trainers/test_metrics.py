"""What is measured of an update, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from trajgym.trainers.metrics import no_signal, rollout_metrics
from trajgym.types import (
    Action,
    CallError,
    Observation,
    Step,
    StopReason,
    Task,
    TokenStream,
    ToolCall,
    ToolResult,
    Trajectory,
)

TASK = Task("sum", "48 + 24?", "72")
CALL = ToolCall("calculator", {"expression": "48+24"})


def turn(calls: int, error: str | None = None, reason: StopReason | None = None, **terms: float) -> Step:
    return Step(
        Action("", calls=(CALL,) * calls),
        Observation(),
        sum(terms.values()),
        terms,
        tuple(ToolResult(CALL, "", error) for _ in range(calls)),
        None if calls or reason else CallError("malformed_json", "x"),
        stop_reason=reason,
    )


RIGHT = Trajectory(
    TASK,
    (),
    (
        turn(2, accuracy=0.0, tool_success=0.5),
        turn(1, error="division_by_zero", accuracy=0.0, tool_success=0.0),
        turn(0, reason=StopReason.ANSWERED, accuracy=1.0, tool_success=0.0),
    ),
    (TokenStream((1, 2, 3), (0, 1, 1), (-1, 0, 1), (0.0,) * 3), TokenStream((1, 2), (0, 1), (-1, 2), (0.0,) * 2)),
)
CUT = Trajectory(
    TASK,
    (),
    (turn(0, accuracy=0.0, tool_success=0.0), turn(1, reason=StopReason.MAX_TURNS, accuracy=0.0, tool_success=0.25)),
    (TokenStream((1, 2, 3), (0, 0, 1), (-1, -1, 0), (0.0,) * 3),),
)
LOST = Trajectory(TASK, (), (turn(1, accuracy=9.0),), fault="Died: the worker")


def test_means_by_hand() -> None:
    assert rollout_metrics([RIGHT, LOST, CUT], gamma=0.5) == pytest.approx(
        {
            "env_steps": 3.0 + 1.0 + 2.0,
            "reward": (1.5 + 0.25) / 2,
            "return": ((0.5 + 0.25 * 1.0) + 0.5 * 0.25) / 2,
            "success": 0.5,
            "turns": 2.5,
            "calls": (3 + 1) / 2,
            "call_share": 3 / 5,
            "call_error_share": 1 / 5,
            "unknown_tool_share": 0.0,
            "tool_error_share": 1 / 4,
            "unreadable_share": 1.0,
            "format_share": 0.0,
            "answered_share": 0.5,
            "truncated_share": 0.5,
            "cut_turn_share": 0.0,
            "fault_share": 1 / 3,
            "faults/Died": 1.0,
            "tokens_per_trajectory": (3 + 1) / 2,
            "reward/accuracy": 0.5,
            "reward/tool_success": (0.5 + 0.25) / 2,
            "reward_variance/accuracy": 0.25 / (0.25 + 0.375),  # 0.25 and 0.375 are what the two differ by
            "reward_variance/tool_success": 0.375 / (0.25 + 0.375),
        }
    )


def test_budgets_that_cut_and_answers_are_told_apart() -> None:
    found = rollout_metrics([RIGHT, CUT, CUT], gamma=1.0)
    assert (found["answered_share"], found["truncated_share"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))


def answer(text: str) -> Trajectory:
    return Trajectory(
        TASK, (), (Step(Action(text), Observation(), 0.0, {"accuracy": 0.0}, stop_reason=StopReason.ANSWERED),)
    )


def test_what_is_lost_silently_is_counted() -> None:
    unknown = Step(Action(""), Observation(), error=CallError("unknown_tool", "There is no tool 'calc'."))
    lost = Trajectory(
        TASK, (), (unknown, turn(1, error="unknown_tool"), turn(2), turn(0, reason=StopReason.TURN_TOKENS))
    )
    found = rollout_metrics([answer("#### 72"), answer("#### 70 or 72"), answer("I do not know."), lost], gamma=1.0)
    assert found["unreadable_share"] == pytest.approx(2 / 3)
    assert found["format_share"] == pytest.approx(1 / 3)
    assert found["unknown_tool_share"] == pytest.approx(2 / 4)
    assert found["cut_turn_share"] == 1 / 4


def test_terms_that_only_some_steps_have() -> None:
    other = Trajectory(TASK, (), (turn(0, reason=StopReason.ANSWERED, accuracy=0.0, brief=0.5),))
    found = rollout_metrics([RIGHT, other], gamma=1.0)
    assert found["reward/brief"] == 0.25
    assert found["reward"] == pytest.approx(sum(v for k, v in found.items() if k.startswith("reward/")))


def test_success_is_graded_also_where_nobody_pays_for_it() -> None:
    def said(text: str, **terms: float) -> Trajectory:
        return Trajectory(TASK, (), (Step(Action(text), Observation(), 0.0, terms, stop_reason=StopReason.ANSWERED),))

    cut = Trajectory(TASK, (), (turn(0, reason=StopReason.TURN_TOKENS),))
    dense = [said("#### 72", tool_success=0.1), said("#### 73"), said("?"), cut]
    found = rollout_metrics(dense, 1.0)
    assert (found["success"], found["unreadable_share"]) == (1 / 4, pytest.approx(1 / 3))
    unpaid = [said("#### 72", accuracy=0.0), cut]  # its weight is 0 at present
    assert rollout_metrics(unpaid, 1.0)["success"] == 0.0
    assert rollout_metrics(unpaid, 1.0, accuracy_paid=False)["success"] == 0.5
    assert rollout_metrics([RIGHT, cut], 1.0)["success"] == 0.5


def test_success_is_not_claimed_where_no_answer_can_be_graded() -> None:
    for steps in [(turn(1, tool_success=0.1),), (turn(0, reason=StopReason.ANSWERED),)]:
        found = rollout_metrics([Trajectory(Task("walk", "Find the door.", ""), (), steps)], 1.0)
        assert not {"success", "unreadable_share", "format_share"} & found.keys()


def test_nothing_but_faults_says_nothing_of_the_policy() -> None:
    other = Trajectory(TASK, (), (), fault="OSError: no disk")
    found = rollout_metrics([LOST, other, LOST], gamma=1.0)
    assert found == {"fault_share": 1.0, "faults/Died": 2.0, "faults/OSError": 1.0}
    assert rollout_metrics([], gamma=1.0) == {"fault_share": 0.0}
    assert not any(name.startswith("faults/") for name in rollout_metrics([RIGHT], gamma=1.0))


@pytest.mark.parametrize(
    ("group", "nothing"),
    [
        ([[0.0, 0.0], [0.0]], True),
        ([], True),
        ([[], []], True),
        ([[0.0], [-1e-6]], False),
        ([[[0.0, 1.0], []]], False),
        ([[[0.0], []]], True),
        ([[1e-13], [0.0]], True),
    ],
)
def test_a_group_of_equals_teaches_nothing(group: Any, nothing: bool) -> None:
    assert no_signal(group) is nothing
