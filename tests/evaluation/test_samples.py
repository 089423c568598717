"""A row for each episode, with what the measures count."""

from __future__ import annotations

import pytest

from trajgym.errors import ConfigError
from trajgym.evaluation.evaluate import Evaluation
from trajgym.evaluation.samples import Price, Sample, samples_of, stratum
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

TASK = Task("t-0", "48 + 24?", "72", difficulty=3)


def played(text: str, answer: str = "72", **more: object) -> Trajectory:
    right = text.endswith(answer)
    last = Step(
        Action(text), Observation(), 1.0, {"accuracy": float(right)}, terminated=True, stop_reason=StopReason.ANSWERED
    )
    return Trajectory(Task("t-0", "48 + 24?", answer, difficulty=3, **more), (), (last,))  # type: ignore[arg-type]


def row(trajectory: Trajectory) -> Sample:
    return samples_of(Evaluation((trajectory,)))[0]


@pytest.mark.parametrize(
    ("text", "distance"), [("#### 72.5", 0.5), ("#### 100", 28.0), ("#### 72", 0.0), ("nothing", None)]
)
def test_numeric_error(text: str, distance: float | None) -> None:
    assert row(played(text)).numeric_error == distance


def test_a_right_answer() -> None:
    found = row(played("Step 1: 40 + 24 = 64\nStep 2: 64 + 8 = 72\n#### 72"))
    assert (found.prediction, found.ground_truth, found.correct, found.strict, found.rule) == (
        "72",
        "72",
        True,
        True,
        "hash",
    )
    assert (found.steps, found.step_markers, found.gold_steps, found.stratum) == (2, True, 3, "medium")
    assert (found.error, found.error_reason, found.reason) == ("", "", "")
    assert (found.tokens, found.prompt_tokens, found.seconds, found.cost) == (None, None, None, None)


def test_strict_and_lenient() -> None:
    found = row(played("40 + 32 = 72"))
    assert (found.correct, found.strict, found.marked, found.error) == (True, False, False, "format")


def test_other_shapes_of_answers() -> None:
    assert row(played("#### 1/3")).prediction == "0.333333333333"
    formula = row(played("\\boxed{2x}", "2x", metadata={"answer_kind": "expression"}))
    assert (formula.prediction, formula.numeric_error) == ("2x", None)
    assert row(played("#### 1", "many")).numeric_error is None


def test_tools_and_budgets() -> None:
    call = ToolCall("calculator", {"expression": "1/0"})
    first = Step(Action("…", calls=(call,)), Observation(), results=(ToolResult(call, "no", error="division_by_zero"),))
    second = Step(
        Action("<tool_call>"),
        Observation(),
        error=CallError("malformed_json", "…"),
        truncated=True,
        stop_reason=StopReason.MAX_TURNS,
    )
    found = row(Trajectory(TASK, (), (first, second)))
    assert (found.turns, found.calls, found.tool_errors, found.unparsed, found.truncated) == (2, 1, 1, 1, True)
    assert (found.prediction, found.rule, found.stop_reason) == (None, "none", "max_turns")


def test_tokens_and_their_price() -> None:
    step = Step(
        Action("#### 72", (7, 8)),
        Observation(),
        1.0,
        {"accuracy": 1.0},
        terminated=True,
        stop_reason=StopReason.ANSWERED,
    )
    stream = TokenStream((1, 2, 3, 7, 8), (0, 0, 0, 1, 1), (-1, -1, -1, 0, 0), (0.0,) * 5)
    evaluation = Evaluation((Trajectory(TASK, (), (step,), (stream,)),), seconds=(1.5,))
    [found] = samples_of(evaluation, price=Price(prompt=1e6, sampled=2e6))
    assert (found.tokens, found.prompt_tokens, found.cost, found.seconds, found.characters) == (2, 3, 7.0, 1.5, 7)
    with pytest.raises(ConfigError, match="finite number from 0"):
        Price(-1.0)


def test_a_fault_of_ours_is_a_wrong_answer_that_says_so() -> None:
    found = row(Trajectory(TASK, (), (), fault="OSError: full"))
    assert (found.correct, found.fault, found.error, found.stop_reason) == (
        False,
        "OSError: full",
        "unclassified",
        "fault",
    )


def test_attempts_and_grades() -> None:
    evaluation = Evaluation((played("#### 72"), played("#### 70")), attempts=2)
    rows = samples_of(evaluation, coherence={("t-0", 1): 0.5})
    assert [(r.attempt, r.coherence) for r in rows] == [(0, None), (1, 0.5)]
    with pytest.raises(ConfigError, match="between 0 and 1, got 2"):
        samples_of(evaluation, coherence={("t-0", 0): 2})
    with pytest.raises(ConfigError, match="not played"):
        samples_of(evaluation, coherence={("t-9", 0): 1})


@pytest.mark.parametrize(
    ("steps", "name"),
    [
        (1, "easy"),
        (2, "easy"),
        (3, "medium"),
        (4, "medium"),
        (5, "hard"),
        (9, "hard"),
        (0, "unknown"),
        (None, "unknown"),
    ],
)
def test_strata(steps: int | None, name: str) -> None:
    assert stratum(Task("t", "?", "1", difficulty=steps)) == name
