"""Terms can be called in both ways; functions written for trainers become terms."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError, RewardError
from trajgym.rewards import LengthPenalty, StepBonus, accuracy, strict_accuracy, tool_success
from trajgym.rewards.functions import FunctionTerm, PlainTerm, takes_completions, term
from trajgym.types import Action, Observation, Step, StopReason, Task

TASK = Task("sum", "48 + 24?", "72", difficulty=2, metadata={"source": "school"})


def answered(text: str) -> Step:
    return Step(Action(text), Observation(), terminated=True, stop_reason=StopReason.ANSWERED)


@given(
    st.lists(st.sampled_from(["#### 72", "72", "#### 73", "", "Step 1: so\n#### 72", "x" * 300 + " 72"]), max_size=5)
)
def test_both_ways_agree_on_one_turn(texts: list[str]) -> None:
    for rated in (accuracy, strict_accuracy, tool_success, LengthPenalty(), StepBonus()):
        assert rated(texts, answer=["72"] * len(texts)) == [rated(answered(text), TASK, ()) for text in texts]
        assert rated(completions=texts, answer=["72"] * len(texts)) == rated(texts, answer=["72"] * len(texts))


def test_a_completion_of_several_turns_is_worth_their_sum() -> None:
    @term
    def turns(step: Step, task: Task, history: Any) -> float:
        return 10.0 + len(history)

    messages = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "?"}, {"role": "assistant"}]
    assert turns([messages, "a"]) == [21.0, 10.0]


def test_a_missing_truth_is_named() -> None:
    with pytest.raises(ConfigError, match=r"ground_truth.*answer.*solution.*got 'prompts', 'truth'"):
        accuracy(["#### 72"], prompts=["48 + 24?"], truth=["72"])
    with pytest.raises(ConfigError, match="got none"):
        accuracy(["#### 72"])
    with pytest.raises(RewardError, match="'red'"):
        accuracy(["#### 72"], answer=["red"])
    with pytest.raises(RewardError, match="''"):
        accuracy(["#### 72", "#### 72"], answer=["72", ""])


def test_a_plain_term_is_still_its_function() -> None:
    assert accuracy.__name__ == "accuracy"
    assert "final answer" in (accuracy.__doc__ or "")
    assert repr(accuracy) == "accuracy"
    assert pickle.loads(pickle.dumps(accuracy)) is accuracy
    local = term(lambda step, task, history: 3.0)
    assert isinstance(local, PlainTerm)
    assert cloudpickle.loads(cloudpickle.dumps(local))(answered(""), TASK, ()) == 3.0
    assert pickle.loads(pickle.dumps(StepBonus(0.2))).step_bonus == 0.2


def whole_row(completions: Any, **columns: Any) -> list[float]:
    assert columns.keys() == {
        "prompts", "question", "answer", "ground_truth", "solution", "task_id", "difficulty", "source"
    }  # fmt: skip
    assert (columns["prompts"], columns["solution"], columns["source"]) == (["48 + 24?"], ["72"], ["school"])
    return [0.25 * len(completions)]


def test_a_function_is_asked_once_when_the_policy_has_answered() -> None:
    rated = FunctionTerm(whole_row)
    assert rated(answered("#### 72"), TASK, ()) == 0.25
    going, cut = Step(Action("#### 72"), Observation()), Step(Action("#### 72"), Observation(), truncated=True)
    assert (rated(going, TASK, ()), rated(cut, TASK, ())) == (0.0, 0.0)


def test_a_function_gets_the_columns_it_names() -> None:
    def named(completions: list[str], answer: list[str]) -> list[float]:
        return [float(text == truth) for text, truth in zip(completions, answer, strict=True)]

    assert FunctionTerm(named)(answered("72"), TASK, ()) == 1.0
    assert FunctionTerm(named)(["72", "x"], answer=["72", "72"], other=[1, 2], trainer_state=None) == [1.0, 0.0]


def test_a_function_gets_completions_and_columns_as_they_came() -> None:
    seen: list[Any] = []

    def spy(completions: Any, **columns: Any) -> list[float]:
        seen.append((completions, columns))
        return [0.5] * len(completions)

    messages = [[{"role": "assistant", "content": "a"}], [{"role": "assistant", "content": "b"}]]
    columns = {"prompts": ["p", "q"], "log_metric": print}
    assert FunctionTerm(spy)(completions=messages, **columns) == [0.5, 0.5]
    assert seen == [(messages, columns)]


@pytest.mark.parametrize(
    "values", [[], [1.0], [1.0, None], [1.0, float("nan")], [1.0, "1"], 1.0, None, [1.0, 2.0, 3.0], [1.0, 1j]]
)
def test_what_a_function_returns_is_checked(values: Any) -> None:
    rated = FunctionTerm(lambda completions: values, name="odd")
    with pytest.raises(RewardError, match="'odd' must return a list of 2 finite numbers"):
        rated(["a", "b"])


def test_the_length_of_columns_is_checked_before_the_function_is_called() -> None:
    with pytest.raises(ConfigError, match="'answer' has 1 values for 2"):
        FunctionTerm(whole_row)(["a", "b"], answer=["72"])


def test_values_out_of_range_warn_once_or_are_cut() -> None:
    values = [-0.5, 0.0, 0.5, 1.0, 1.5]

    def wide(completions: Any, **columns: Any) -> list[float]:
        return values[: len(completions)]

    rated = FunctionTerm(wide)
    with pytest.warns(UserWarning, match=r"'wide' returned -0\.5.*clip=True") as caught:
        assert rated(list("abcde")) == values
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rated(list("abcde")) == values
        assert FunctionTerm(wide, clip=True)(list("abcde")) == [0.0, 0.0, 0.5, 1.0, 1.0]
        values = [0.0, 1.0]
        assert FunctionTerm(wide)(["a", "b"]) == [0.0, 1.0]


async def later(completions: Any, **columns: Any) -> list[float]:
    return [0.0]


@pytest.mark.parametrize("thing", [None, 3, "accuracy", lambda texts: [0.0], len, later, dict, print])
def test_other_things_are_no_reward_functions(thing: Any) -> None:
    with pytest.raises(ConfigError, match="reward function"):
        FunctionTerm(thing)


def test_telling_functions_from_terms() -> None:
    assert takes_completions(whole_row)
    assert not takes_completions(lambda step, task, history: 0.0)
    assert not takes_completions(FunctionTerm)
