"""Terms for the answer: right or not, and style that pays nothing without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError, RewardError
from trajgym.rewards.functions import RewardTerm
from trajgym.rewards.terms import LengthPenalty, StepBonus, accuracy, format_kept, strict_accuracy
from trajgym.types import Action, CallError, ExpertTurn, Message, Observation, Step, StopReason, Task, ToolCall

TASK = Task("sum", "48 + 24?", "72")


def said(text: str, reason: StopReason | None = StopReason.ANSWERED, error: CallError | None = None) -> Step:
    return Step(Action(text), Observation((Message("tool", "#### 72"),)), error=error, stop_reason=reason)


@pytest.mark.parametrize(
    ("text", "value"), [("#### 72", 1.0), ("So it is 72.", 1.0), ("#### 72.0", 1.0), ("#### 73", 0.0), ("", 0.0)]
)
def test_accuracy_is_the_final_answers(text: str, value: float) -> None:
    assert accuracy(said(text), TASK, []) == value


@pytest.mark.parametrize("reason", [None, *(r for r in StopReason if r is not StopReason.ANSWERED)])
def test_what_is_not_a_final_answer_is_worth_nothing(reason: StopReason | None) -> None:
    for term in (accuracy, strict_accuracy, format_kept, LengthPenalty(0), StepBonus()):
        assert term(said("Step 1: so\n#### 72", reason), TASK, []) == 0.0


def test_a_tools_output_is_not_the_policys_word() -> None:
    assert accuracy(said("I do not know."), TASK, []) == 0.0


def test_a_truth_that_is_no_number_is_the_callers_mistake() -> None:
    with pytest.raises(RewardError, match=r"'red'.*rubric of your own"):
        accuracy(said("red"), Task("t", "?", "red"), [])


@pytest.mark.parametrize(
    ("text", "strict"),
    [("#### 72", 1.0), ("Final Answer: 72", 1.0), (r"\boxed{72}", 1.0), ("So it is 72.", 0.0), ("#### 73", 0.0)],
)
def test_strict_accuracy_wants_a_marker(text: str, strict: float) -> None:
    assert strict_accuracy(said(text), TASK, []) == strict


def test_format_is_kept_in_every_turn_or_not_at_all() -> None:
    broken = said("<tool_call>{", None, CallError("truncated_call", "cut"))
    fine = said("call", None)
    assert format_kept(said("#### 72"), TASK, [fine, fine]) == 1.0
    assert format_kept(said("#### 72"), TASK, [fine, broken, fine]) == 0.0
    assert format_kept(said("72"), TASK, [fine]) == 0.0
    assert format_kept(said("#### 73"), TASK, [fine]) == 0.0


@pytest.mark.parametrize(
    ("characters", "penalty"), [(8, 0.0), (200, 0.0), (201, -0.001), (500, -0.3), (1200, -1.0), (100_000, -1.0)]
)
def test_length_costs_from_the_target_on_and_never_more_than_the_answer(characters: int, penalty: float) -> None:
    assert LengthPenalty()(said("#### 72".rjust(characters)), TASK, []) == pytest.approx(penalty)


def test_length_is_that_of_the_whole_episode() -> None:
    assert LengthPenalty(10, 0.01)(said("#### 72"), TASK, [said("x" * 20, None)]) == pytest.approx(-0.17)
    assert LengthPenalty(10, 0.01, most=0.05)(said("#### 72".rjust(99)), TASK, []) == -0.05
    assert LengthPenalty(0, 1.0, most=float("inf"))(said("#### 72".rjust(99)), TASK, []) == -99.0


def test_length_in_tokens() -> None:
    tokens = LengthPenalty(2, 0.1, unit="tokens", count=lambda text: len(text.split()))
    assert tokens(said("it is #### 72"), TASK, []) == pytest.approx(-0.2)
    known = LengthPenalty(2, 0.1, unit="tokens")
    assert known(["#### 72"], answer=["72"], completion_ids=[[1, 2, 3, 4, 5]]) == [pytest.approx(-0.3)]
    with pytest.raises(RewardError, match="count="):
        known(said("#### 72"), TASK, [])


@pytest.mark.parametrize("steps", range(8))
def test_steps_pay_up_to_five(steps: int) -> None:
    text = "".join(f"Step {i}: so {i}\n" for i in range(1, steps + 1))
    assert StepBonus()(said(f"{text}#### 72"), TASK, []) == pytest.approx(0.1 * min(5, steps))


def test_steps_of_the_whole_episode_in_any_mode() -> None:
    history = [said("Step 1: halve", None), said("Step 2: add", None)]
    assert StepBonus(1.0)(said("Step 3: say\n#### 72"), TASK, history) == 3.0
    assert StepBonus(1.0, mode="lines")(said("a\nb\n#### 72"), TASK, []) == 2.0
    assert StepBonus(1.0, mode="regex", pattern=r"\d=\d", most=1)(said("1=1 2=2\n#### 72"), TASK, []) == 1.0


SOLVED = Task(
    "clips",
    "48 clips, then half as many, twice. In all?",
    "96",
    solution=(ExpertTurn(calls=(ToolCall("calculator", {"expression": "48/2"}),)), ExpertTurn("#### 96")),
    metadata={"steps": [24, 48, 72, 96]},
)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("Step 1: 48/2 = 24\nStep 2: 48 + 24 = 72\nStep 3: 72 + 24 = 96", 2),  # the answer says 96 itself
        ("Step 1: 48/2 = 24, and 48 + 24 = 72", 1),
        ("Step 1: I read.\nStep 2: I think.\nStep 3: 48/2 = 24", 1),
        ("Step 1: 24\nStep 2: so 24\nStep 3: again 24", 1),
        ("Step 1: 48 clips\nStep 2: 96 clips", 0),
        ("".join(f"Step {n}: {n} = {n}\n" for n in range(1, 200)), 0),  # a list of guesses
        ("24 and 72", 0),
    ],
)
def test_where_the_solution_is_known_steps_must_show_it(text: str, steps: int) -> None:
    assert StepBonus(1.0)(said(f"{text}\n#### 96"), SOLVED, []) == steps
    assert StepBonus(1.0)(said(f"{text}\n#### 95"), SOLVED, []) == 0.0


def test_where_only_the_demonstration_is_known_nothing_can_be_shown() -> None:
    assert StepBonus(1.0)(said("Step 1: 24\n#### 96"), replace(SOLVED, metadata={}), []) == 0.0
    assert StepBonus(1.0)(said("Step 1: 24\n#### 96"), replace(SOLVED, metadata={}, solution=()), []) == 1.0


@given(st.text(max_size=200), st.lists(st.text(max_size=20), max_size=3))
def test_style_pays_nothing_with_a_wrong_answer(text: str, before: list[str]) -> None:
    history = [said(t, None) for t in before]
    last = said(f"Step 1: {text}\nStep 2: more\n#### 73")
    terms: list[RewardTerm] = [LengthPenalty(0), StepBonus(), StepBonus(mode="lines"), strict_accuracy, format_kept]
    assert [term(last, TASK, history) for term in terms] == [0.0] * len(terms)


@given(st.text(max_size=400), st.integers(0, 50), st.floats(0, 10))
def test_a_right_answer_is_never_worth_less_than_a_wrong_one(text: str, target: int, weight: float) -> None:
    last = said(f"{text}\n#### 72")
    assert accuracy(last, TASK, []) + LengthPenalty(target, weight)(last, TASK, []) >= 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LengthPenalty(-1), "target_length"),
        (lambda: LengthPenalty(10, float("nan")), "penalty_weight"),
        (lambda: LengthPenalty(10, True), "penalty_weight"),
        (lambda: LengthPenalty("200"), "target_length"),  # type: ignore[arg-type]
        (lambda: LengthPenalty(unit="words"), "unit of length"),
        (lambda: LengthPenalty(most=-1.0), "most"),
        (lambda: LengthPenalty(most=float("nan")), "most"),
        (lambda: LengthPenalty(most=True), "most must be a finite number of at least 0, got True"),
        (lambda: LengthPenalty(most=float("-inf")), "most"),
        (lambda: StepBonus(True), "step_bonus"),
        (lambda: StepBonus(most=True), "most"),
        (lambda: StepBonus(-0.1), "step_bonus"),
        (lambda: StepBonus(most=-1), "most"),
        (lambda: StepBonus(mode="newlines"), "Did you mean 'lines'"),
        (lambda: StepBonus(mode="regex"), "needs a pattern"),
    ],
)
def test_wrong_options_are_named(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_task_can_ask_for_an_expression() -> None:
    task = Task("d", "Differentiate x^2 + x.", "2x + 1", metadata={"answer_kind": "expression"})
    assert accuracy(said(r"So f'(x) is \boxed{1 + 2x}"), task, []) == 1.0
    assert accuracy(said(r"\boxed{2x}"), task, []) == 0.0
    with pytest.raises(RewardError, match="cannot compare"):
        accuracy(said("#### 1"), Task("d", "?", "2x + ", metadata={"answer_kind": "expression"}), [])
