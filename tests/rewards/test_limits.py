"""Caps, gates and advances: what an episode can earn has a bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError
from trajgym.rewards import Capped, Gated, Rubric, Settled, Shaped, accuracy, needed_steps
from trajgym.types import Action, Observation, Step, StopReason, Task, discounted_return

TASK = Task("sum", "48 + 24?", "72", difficulty=2)
values = st.lists(st.floats(-5, 5, allow_nan=False).map(lambda x: round(x, 3)), max_size=7)
ENDS = [*StopReason]


def told(step: Step, task: Task, history: Sequence[Step]) -> float:
    """A term whose values stand in the steps' texts."""
    return float(step.action.text.split()[0])


def episode(given_values: Sequence[float], end: StopReason | None = None, text: str = "") -> list[Step]:
    steps = [Step(Action(str(v)), Observation()) for v in given_values]
    if end is not None and steps:
        said = Action(f"{steps[-1].action.text} {text}")
        over = end.terminates
        steps[-1] = Step(said, Observation(), terminated=over, truncated=not over, stop_reason=end)
    return steps


def paid(term: Any, steps: list[Step], task: Task = TASK) -> list[float]:
    return [term(step, task, steps[:i]) for i, step in enumerate(steps)]


@given(values, st.floats(0, 5), st.floats(-5, 0))
def test_what_has_been_paid_is_the_sum_cut_to_the_limits(given_values: list[float], most: float, least: float) -> None:
    capped = paid(Capped(told, most, least), episode(given_values))
    for n in range(len(given_values) + 1):
        assert math.fsum(capped[:n]) == pytest.approx(max(least, min(most, math.fsum(given_values[:n]))), abs=1e-9)


def test_one_limit_or_a_limit_for_each_task() -> None:
    assert paid(Capped(told, most=2.5), episode([1, 1, 1, 1, -3, 1])) == [1.0, 1.0, 0.5, 0.0, -1.5, 1.0]
    assert paid(Capped(told, least=-2.5), episode([-1, -1, -1, -1])) == [-1.0, -1.0, -0.5, 0.0]
    assert paid(Capped(told, most=needed_steps), episode([1, 1, 1])) == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({}, "needs a limit"),
        ({"most": -1.0}, "most must be at least 0"),
        ({"least": 1.0}, "least must be at most 0"),
        ({"most": float("nan")}, "most must be at least 0"),
        ({"most": "3"}, "most must be a number"),
        ({"least": True}, "least must be a number"),
    ],
)
def test_wrong_limits(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Capped(told, **limits)


def test_a_gate_multiplies_and_saves_the_question() -> None:
    asked: list[str] = []

    def costly(step: Step, task: Task, history: Sequence[Step]) -> float:
        asked.append(step.action.text)
        return 0.5

    right, wrong = episode([1], StopReason.ANSWERED, "#### 72"), episode([1], StopReason.ANSWERED, "#### 73")
    assert paid(Gated(costly), right) == [0.5]
    assert paid(Gated(costly), [*episode([1]), *wrong]) == [0.0, 0.0]
    assert asked == [right[0].action.text]
    assert paid(Gated(told, gate=told), episode([3])) == [9.0]


@given(values.filter(bool), st.sampled_from([0.3, 0.9, 1.0]), st.sampled_from(ENDS))
def test_an_advance_is_worth_nothing_without_a_right_answer(
    given_values: list[float], gamma: float, end: StopReason
) -> None:
    steps = episode(given_values, end, "#### 73")
    got = paid(Settled(told, gamma), steps)
    assert got[:-1] == given_values[:-1]  # paid on the way all the same
    assert discounted_return(got, gamma) == pytest.approx(0.0, abs=1e-9)


@given(values.filter(bool))
def test_an_advance_is_kept_with_a_right_answer(given_values: list[float]) -> None:
    assert paid(Settled(told), episode(given_values, StopReason.ANSWERED, "#### 72")) == given_values


def test_who_is_right_may_be_somebody_elses_business() -> None:
    settled = Settled(told, right=lambda step, task, history: float("good" in step.action.text))
    assert paid(settled, episode([1, 2], StopReason.ANSWERED, "good")) == [1.0, 2.0]
    assert paid(settled, episode([1, 2], StopReason.ANSWERED, "#### 72")) == [1.0, -1.0]
    assert str(paid(settled, episode([1], StopReason.ANSWERED))) == "[0.0]"


@pytest.mark.parametrize("gamma", [0.0, -0.5, 1.1, float("nan"), "1"])
def test_an_advance_needs_a_discount_that_can_be_undone(gamma: Any) -> None:
    with pytest.raises(ConfigError, match="gamma"):
        Settled(told, gamma)


@pytest.mark.parametrize(
    "make", [lambda: Capped(3, 1.0), lambda: Gated(None), lambda: Gated(told, 1), lambda: Settled("x")]
)
def test_only_terms_can_be_bounded(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"needs (a term|two terms|terms)"):
        make()


def test_the_discount_reaches_what_is_inside() -> None:
    inner = Shaped(lambda task, steps: 0.0)
    for outer in (Capped(inner, 1.0), Gated(inner)):
        assert outer.discounted(0.5).term.gamma == 0.5  # type: ignore[attr-defined]
    plain = Capped(told, 1.0)
    assert plain.discounted(0.5) is plain


def test_bounds_are_terms_for_trainers_too() -> None:
    rubric = Rubric({"capped": (Capped(accuracy, most=0.5), 1.0), "settled": (Settled(accuracy), 1.0)})
    assert rubric(["#### 72", "#### 73"], answer=["72", "72"]) == [1.5, 0.0]
