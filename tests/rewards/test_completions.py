"""Completions and columns become tasks and steps, or an error that says what is wrong."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import ConfigError
from trajgym.rewards import accuracy
from trajgym.rewards.completions import TRUTHS, columns_of, number_text, read_completions
from trajgym.types import Action, Observation, Step, StopReason, Task


def one(completion: Any, **columns: Any) -> tuple[Task, tuple[Step, ...]]:
    [read] = read_completions([completion], {name: [value] for name, value in columns.items()})
    return read


def call(name: str = "calculator", arguments: Any = None) -> dict[str, Any]:
    function = {"name": name, "arguments": {"expression": "48+24"} if arguments is None else arguments}
    return {"type": "function", "function": function}


def test_a_text_is_a_final_answer() -> None:
    task, steps = one("#### 72", prompts="48 + 24?", answer="72", completion_ids=[5, 6], difficulty=2, source="school")
    assert task == Task("row 0", "48 + 24?", "72", difficulty=2, metadata={"source": "school"})
    action = Action("#### 72", token_ids=(5, 6))
    assert steps == (Step(action, Observation(), terminated=True, stop_reason=StopReason.ANSWERED),)


def test_messages_of_one_turn_are_the_same_as_their_text() -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "48 + 24?"}]
    message = [{"role": "assistant", "content": "#### 72"}]
    assert one(message, prompts=chat, answer="72") == one("#### 72", prompts="48 + 24?", answer="72")


def test_messages_with_tools_are_an_episode() -> None:
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call(), call(arguments={"expression": "1/0"})]},
        {"role": "tool", "name": "calculator", "content": "72"},
        {"role": "tool", "name": "calculator", "content": str({"error": "division by zero, 'really'"})},
        {"role": "assistant", "content": [{"type": "text", "text": "#### "}, {"type": "image"}, {"text": "72"}]},
    ]
    _, (first, last) = one(messages)
    assert [c.arguments for c in first.action.calls] == [{"expression": "48+24"}, {"expression": "1/0"}]
    assert [r.error for r in first.results] == [None, "error"]
    assert (first.stop_reason, first.observation.messages[0].content) == (None, "72")
    assert (last.action.text, last.stop_reason, last.terminated) == ("#### 72", StopReason.ANSWERED, True)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": "#### 72", "tool_calls": [call()]}],
        [
            {"role": "assistant", "content": "#### 72", "tool_calls": [call()]},
            {"role": "tool", "name": "calculator", "content": "72"},
        ],
    ],
    ids=["call not run", "result not read"],
)
def test_messages_that_do_not_end_with_words_are_cut(messages: Any) -> None:
    _, steps = one(messages)
    assert (steps[-1].stop_reason, steps[-1].truncated) == (StopReason.MAX_TURNS, True)


@pytest.mark.parametrize("arguments", ["{broken", "[1]", 3, "[" * 100_000])
def test_calls_that_cannot_be_read_are_the_policys_errors(arguments: Any) -> None:
    _, (step,) = one([{"role": "assistant", "tool_calls": [call(arguments=arguments), call(arguments='{"x": 1}')]}])
    assert step.error is not None
    assert [c.arguments for c in step.action.calls] == [{"x": 1}]


@pytest.mark.parametrize("value", ["72", 72, 72.0, "48 + 24 = 72\n#### 72"])
@pytest.mark.parametrize("name", TRUTHS)
def test_the_truth_is_found_under_any_of_its_names(name: str, value: Any) -> None:
    assert one("x", **{name: value})[0].answer == str(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e22, "1" + "0" * 22), (1e-7, "0.0000001"), (Decimal("2.50"), "2.50"), (np.int64(72), "72"), (-3, "-3")],
)
def test_numbers_are_written_in_digits(value: Any, text: str) -> None:
    assert one("x", answer=value)[0].answer == number_text(value) == text
    assert accuracy([f"#### {text}"], answer=[value]) == [1.0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Decimal("1e999999999"), True, 1j, "72", None])
def test_what_is_no_number_has_no_digits(value: Any) -> None:
    assert number_text(value) is None


def test_a_number_of_too_many_digits_is_no_truth() -> None:
    assert number_text(10**5_000) is None
    with pytest.raises(ConfigError, match="got a number of too many digits in row 0"):
        one("x", answer=10**5_000)


def test_of_several_truths_the_first_counts_and_the_others_are_kept() -> None:
    task, _ = one("x", solution="long", answer="working\n#### 72", ground_truth="72")
    assert task.answer == "72"
    assert task.metadata == {"solution": "long", "answer": "working\n#### 72"}
    assert one("x", ground_truth=None, answer="72")[0].answer == "72"


@pytest.mark.parametrize("value", [True, ["72"], {"a": 1}, float("nan"), float("inf")])
def test_a_truth_of_another_kind_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="'answer' must hold texts or numbers"):
        one("x", answer=value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"answer": ["72"]}, "'answer' has 1 values for 2 completions"),
        ({"answer": ["72"] * 3}, "'answer' has 3 values for 2 completions"),
        ({"completion_ids": []}, "'completion_ids' has 0 values"),
        ({"answer": "72"}, "'answer' must be a list"),
        ({"difficulty": {"a": 1, "b": 2}}, "'difficulty' must be a list"),
        ({"ground_thruth": "72"}, "'ground_thruth' must be a list .* Did you mean 'ground_truth'"),
        ({"trainer_stat": object()}, "Did you mean 'trainer_state'"),
    ],
)
def test_columns_of_the_wrong_form_are_named(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_completions(["a", "b"], columns)


def test_what_trainers_pass_beside_the_columns_is_none() -> None:
    [(task, _)] = read_completions(["a"], {"trainer_state": object(), "log_extra": print, "log_metric": print})
    assert task.metadata == {}


@pytest.mark.parametrize("completions", ["#### 72", None, 3, {"a": "b"}])
def test_completions_come_in_a_list(completions: Any) -> None:
    with pytest.raises(ConfigError, match="completions must be a list"):
        read_completions(completions, {})


@pytest.mark.parametrize("completion", [None, 3, {"role": "assistant"}, ["x"], [{"content": "x"}], [{"role": "user"}]])
def test_a_completion_is_text_or_messages(completion: Any) -> None:
    with pytest.raises(ConfigError, match="Completion 1 must be a text or a list of messages"):
        read_completions(["fine", completion], {})


def test_no_messages_are_no_steps() -> None:
    assert one([])[1] == ()


@given(st.text(), st.text(), st.text(min_size=1), st.dictionaries(st.sampled_from(["a", "b"]), st.integers()))
def test_a_task_survives_as_columns(text: str, question: str, answer: str, metadata: dict[str, int]) -> None:
    task = Task("t", question, answer, difficulty=3, metadata=metadata)
    step = Step(Action(text, token_ids=(1,)), Observation(), terminated=True, stop_reason=StopReason.ANSWERED)
    [(again, steps)] = read_completions([text], columns_of(task, step))
    assert (again.id, again.question, again.answer, again.difficulty) == ("t", question, answer, 3)
    assert {k: again.metadata[k] for k in metadata} == metadata
    assert steps == (step,)
