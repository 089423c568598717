"""The named rewards and their worked numbers, as functions for trainers and in environments."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

from trajgym.errors import ConfigError
from trajgym.rewards import (
    AccuracyReward,
    LengthPenaltyReward,
    MathRewardFunction,
    Rubric,
    Schedule,
    StepReward,
    get_reward_function,
    get_rubric,
)
from trajgym.types import Action, Observation, Step, StopReason, Task

RIGHT, WRONG = "#### 72", "#### 73"


def of_length(characters: int, answer: str = RIGHT) -> str:
    return answer.rjust(characters)


def with_steps(steps: int, answer: str = RIGHT, characters: int = 0) -> str:
    text = "".join(f"Step {i}: this is number {i}.\n" for i in range(1, steps + 1)) + answer
    return text.rjust(characters)


def one(reward: Rubric, text: str) -> float:
    [value] = reward(completions=[text], ground_truth=["72"])
    return value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Final Answer: 72", 1.0),
        ("#### 72", 1.0),
        ("48 + 24 makes 72", 1.0),
        ("#### 72.0", 1.0),
        ("#### seventy-two", 1.0),
        ("#### 73", 0.0),
        ("", 0.0),
        ("70 or 72", 0.0),
    ],
)
def test_accuracy(text: str, value: float) -> None:
    assert one(AccuracyReward(), text) == value


def test_accuracy_with_a_suffix() -> None:
    assert AccuracyReward()(["#### 1k", "#### 1,000"], ground_truth=["1000", "1000"]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("characters", "answer", "value"),
    [(50, RIGHT, 1.0), (200, RIGHT, 1.0), (500, RIGHT, 0.7), (50, WRONG, 0.0), (500, WRONG, 0.0)],
)
def test_length_table(characters: int, answer: str, value: float) -> None:
    assert one(LengthPenaltyReward(), of_length(characters, answer)) == pytest.approx(value, abs=1e-12)
    assert one(LengthPenaltyReward(target_length=200, penalty_weight=0.001), of_length(characters, answer)) == (
        pytest.approx(value, abs=1e-12)
    )


@pytest.mark.parametrize(
    ("steps", "answer", "value"),
    [(0, RIGHT, 1.0), (2, RIGHT, 1.2), (3, RIGHT, 1.3), (5, RIGHT, 1.5), (5, WRONG, 0.0)],
)
def test_step_table(steps: int, answer: str, value: float) -> None:
    assert one(StepReward(), with_steps(steps, answer)) == pytest.approx(value, abs=1e-12)
    assert one(StepReward(step_bonus=0.1), with_steps(steps, answer)) == pytest.approx(value, abs=1e-12)


def test_the_combined_example() -> None:
    text = with_steps(3, characters=300)
    [parts] = MathRewardFunction().breakdown([text], ground_truth=["72"])
    assert parts == {"accuracy": 1.0, "length_penalty": pytest.approx(-0.1), "step": pytest.approx(0.3)}
    assert f"{one(MathRewardFunction(), text):.3f}" == "1.200"
    assert one(MathRewardFunction(), with_steps(3, WRONG, 300)) == 0.0


@pytest.mark.parametrize(
    ("reward", "value"),
    [
        ("accuracy", 1.0),
        ("length_penalty", 0.9),
        ("step", 1.3),
        ("combined", 1.2),
        ("math", 1.0 - 0.5 * 0.1 + 0.3 * 0.3),
        ({"accuracy": 1.0, "length_penalty": 1.0}, 0.9),
        ({"accuracy": 1.0, "step": 1.0}, 1.3),
        (
            {
                "accuracy": 1.0,
                "length_penalty": {"weight": 0.5, "target_length": 200},
                "step": {"weight": 0.3, "step_bonus": 0.1},
            },
            1.0 - 0.5 * 0.1 + 0.3 * 0.3,
        ),
    ],
)
def test_combinations_by_name_and_weight(reward: Any, value: float) -> None:
    rubric = get_rubric(reward)
    assert one(rubric, with_steps(3, characters=300)) == pytest.approx(value)
    assert one(rubric, with_steps(3, WRONG, 300)) == 0.0


def test_options_of_the_names() -> None:
    text = with_steps(3, characters=300)
    assert one(get_rubric("length_penalty", target_length=100, penalty_weight=0.002), text) == pytest.approx(0.6)
    assert one(get_rubric("step", step_bonus=0.2), text) == pytest.approx(1.6)
    assert get_reward_function("combined", length_penalty=0.0)([text], ground_truth=["72"]) == [pytest.approx(1.3)]


def test_environments_pay_the_same() -> None:
    text = with_steps(3, characters=300)
    step = Step(Action(text), Observation(), terminated=True, stop_reason=StopReason.ANSWERED)
    parts = MathRewardFunction().score(step, Task("t", "48 + 24?", "72"), [])
    assert math.fsum(parts.values()) == pytest.approx(one(MathRewardFunction(), text))


@pytest.mark.parametrize(
    "text",
    ["\n" * 500 + WRONG, with_steps(5, WRONG), WRONG, "70 or 72", "Step 1: 72\nStep 2: 73\n#### 72 or 73", "\n" * 500],
    ids=["newlines", "steps", "short", "hedged", "hedged steps", "blank"],
)
def test_hacks_earn_nothing(text: str) -> None:
    for name in ("accuracy", "length_penalty", "step", "combined", "math"):
        assert one(get_rubric(name), text) == 0.0
    assert one(StepReward(step_mode="lines"), text) == 0.0


@pytest.mark.parametrize("spam", ["\n" * 500, "Step 1:\n" * 50, "Step 1: so\n" * 50, "so\n" * 50])
def test_spam_earns_next_to_nothing_with_a_right_answer(spam: str) -> None:
    assert one(StepReward(), spam + RIGHT) <= 1.1
    assert one(StepReward(step_mode="lines"), spam + RIGHT) <= 1.3


def test_a_right_answer_is_never_worth_less_than_a_wrong_one() -> None:
    assert one(LengthPenaltyReward(), of_length(100_000)) == 0.0
    assert one(LengthPenaltyReward(most_penalty=float("inf")), of_length(2_200)) == pytest.approx(-1.0)


def test_strict_and_lenient() -> None:
    assert one(AccuracyReward(strict=True), "#### 72") == 1.0
    assert one(AccuracyReward(strict=True), "It is 72.") == 0.0
    assert one(MathRewardFunction(strict=True), "It is 72.") == 0.0
    assert one(AccuracyReward(), "It is 72.") == 1.0


def test_modes_and_units() -> None:
    assert one(StepReward(step_mode="lines"), "48/2=24\n48+24=72\n#### 72") == pytest.approx(1.2)
    assert one(StepReward(step_mode="regex", step_pattern=r"=\d+"), "48/2=24\n48+24=72\n#### 72") == pytest.approx(1.2)
    words = LengthPenaltyReward(2, 0.1, unit="tokens", count=lambda text: len(text.split()))
    assert one(words, "it is #### 72") == pytest.approx(0.8)


def test_each_is_a_rubric() -> None:
    for reward in (AccuracyReward(), LengthPenaltyReward(), StepReward(), MathRewardFunction()):
        assert isinstance(reward, MathRewardFunction)
        assert reward["accuracy"][1] == 1.0
        assert pickle.loads(pickle.dumps(reward)).weights == reward.weights
    fading = MathRewardFunction(step=Schedule([(0.0, 1.0), (1.0, 0.0)]))
    assert fading.at(0.5).weights == {"accuracy": 1.0, "length_penalty": 1.0, "step": 0.5}
    with pytest.raises(ConfigError, match="target_length"):
        LengthPenaltyReward(-1)
