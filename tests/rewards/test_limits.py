"""Caps, gates and advances: what an episode can earn has a bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError
from trajgym.rewards import Capped, Gated, RewardTerm, Rubric, Settled, Shaped, Term, accuracy, needed_steps
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


@pytest.mark.parametrize("gamma", [0.0, -0.5, 1.1, float("nan"), "1", True])
def test_an_advance_needs_a_discount_that_can_be_undone(gamma: Any) -> None:
    with pytest.raises(ConfigError, match="gamma"):
        Settled(told, gamma)


@pytest.mark.parametrize(
    "make", [lambda: Capped(3, 1.0), lambda: Gated(None), lambda: Gated(told, 1), lambda: Settled("x")]
)
def test_only_terms_can_be_bounded(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"needs (a term|two terms|terms)"):
        make()


# The discount of the run.

gammas = st.sampled_from([0.3, 0.9, 1.0])
potentials = st.lists(st.floats(-3, 3).map(lambda x: round(x, 3)), min_size=8, max_size=8)


def shaped(phi: Sequence[float], gamma: float | None = None) -> Shaped:
    return Shaped(lambda task, steps: phi[len(steps)], gamma)


def steady(step: Step, task: Task, history: Sequence[Step]) -> float:
    return 0.5


WRAPPERS: dict[str, Callable[[Term, float | None], RewardTerm]] = {
    "capped": lambda term, gamma: Capped(term, most=2.0, least=-1.0),
    "gated": lambda term, gamma: Gated(term, steady),
    "as the gate": lambda term, gamma: Gated(steady, term),
    "settled": lambda term, gamma: Settled(term, gamma),
    "as what is right": lambda term, gamma: Settled(steady, gamma, right=term),
    "settled, capped": lambda term, gamma: Settled(Capped(term, most=2.0), gamma),
    "capped, settled": lambda term, gamma: Capped(Settled(term, gamma), most=2.0),
    "gated, capped, settled": lambda term, gamma: Gated(Capped(Settled(term, gamma), least=-1.0), steady),
    "settled, gated, capped": lambda term, gamma: Settled(Gated(Capped(term, most=1.0), steady), gamma),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@given(gammas, potentials, st.integers(1, 6), st.sampled_from(ENDS), st.sampled_from(["#### 72", "#### 73"]))
def test_shaping_inside_a_wrapper_is_told_the_discount(
    wrapper: str, gamma: float, phi: list[float], count: int, end: StopReason, text: str
) -> None:
    """A wrapper that is told the discount pays what one made for that discount pays."""
    wrap = WRAPPERS[wrapper]
    steps = episode([0.0] * count, end, text)
    told_later = wrap(shaped(phi), None).discounted(gamma)
    assert paid(told_later, steps) == paid(wrap(shaped(phi, gamma), gamma), steps)
    rubric = Rubric({"shaping": (wrap(shaped(phi), None), 2.0)}).discounted(gamma)
    assert [part["shaping"] for part in paid(rubric.score, steps)] == [2.0 * value for value in paid(told_later, steps)]


@given(gammas, potentials, st.integers(1, 6), st.sampled_from(ENDS))
def test_shaping_as_an_advance_adds_nothing_but_the_start(
    gamma: float, phi: list[float], count: int, end: StopReason
) -> None:
    """Right answers keep −Φ(s_0), the sum that telescopes; everything else is paid back to 0."""
    settled = Settled(shaped(phi)).discounted(gamma)
    right, wrong = (episode([0.0] * count, end, text) for text in ("#### 72", "#### 73"))
    assert discounted_return(paid(settled, wrong), gamma) == pytest.approx(0.0, abs=1e-9)
    kept = -phi[0] if end is StopReason.ANSWERED else 0.0
    assert discounted_return(paid(settled, right), gamma) == pytest.approx(kept, abs=1e-9)


@pytest.mark.parametrize("wrapper", [*WRAPPERS])
def test_two_discounts_are_refused_however_deep(wrapper: str) -> None:
    with pytest.raises(ConfigError, match=r"gamma=0\.5 and the run 0\.9"):
        WRAPPERS[wrapper](shaped([0.0] * 8, 0.5), None).discounted(0.9)


@pytest.mark.parametrize("gamma", [True, float("nan"), 1.5, "1"])
def test_a_discount_that_is_none_is_refused(gamma: Any) -> None:
    for term in (shaped([0.0] * 8), Settled(told), Capped(Settled(told), 1.0)):
        with pytest.raises(ConfigError, match="gamma"):
            term.discounted(gamma)


def test_bounds_are_terms_for_trainers_too() -> None:
    rubric = Rubric({"capped": (Capped(accuracy, most=0.5), 1.0), "settled": (Settled(accuracy), 1.0)})
    assert rubric(["#### 72", "#### 73"], answer=["72", "72"]) == [1.5, 0.0]
