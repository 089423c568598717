"""Reward functions of others under TRL: what they may return, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any

import pytest
import torch

from trajgym.errors import RewardError
from trajgym.trainers.trl_functions import checked


def given(rewards: Any) -> Any:
    def custom(completions: Any, **columns: Any) -> Any:
        if isinstance(rewards, Exception):
            raise rewards
        return rewards

    return custom


def rate(function: Any) -> Any:
    return function(prompts=["a", "b"], completions=["x", "y"])


@pytest.mark.parametrize("rewards", [[1.0, None], (0, True), torch.tensor([1.0, 2.0])])
def test_numbers_and_no_opinion_pass(rewards: Any) -> None:
    assert rate(checked(given(rewards))) == list(rewards)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([1.0, float("nan")], "'custom' gave completion 1 the reward nan"),
        ([float("-inf"), 0.0], "completion 0 the reward -inf"),
        ([1.0, "2"], "reward '2'"),
        (torch.tensor([1.0, torch.nan]), "completion 1"),
        ([1.0], "one reward for each of 2 completions, got 1"),
        (0.5, "'custom' failed: TypeError"),
        (KeyError("answer"), "'custom' failed: KeyError: 'answer'"),
    ],
)
def test_anything_else_is_named(rewards: Any, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        rate(checked(given(rewards)))

    async def custom(completions: Any, **columns: Any) -> Any:
        return given(rewards)(completions)

    with pytest.raises(RewardError, match=message):
        asyncio.run(rate(checked(custom)))


def test_names_and_kinds_stay() -> None:
    class Judge:
        async def __call__(self, completions: Any, **columns: Any) -> Any:
            return [0.0, 1.0]

    assert checked(given([])).__name__ == checked(functools.partial(given([]))).__name__ == "custom"
    judge = checked(Judge())
    assert judge.__name__ == "Judge"
    assert inspect.iscoroutinefunction(judge)
    assert asyncio.run(rate(judge)) == [0.0, 1.0]


def test_our_own_errors_pass_as_they_are() -> None:
    error = RewardError("mine")
    with pytest.raises(RewardError) as caught:
        rate(checked(given(error)))
    assert caught.value is error
