"""Advantages of steps on the tokens of a padded batch."""

from __future__ import annotations

import math

import pytest
import torch

from trajgym.errors import RewardError, UnknownNameError
from trajgym.trainers.advantages import bind
from trajgym.trainers.trl_credit import StepsPaid, credit_groups, spread_over_tokens, turn_of_each_token

MEAN = bind("trajectory", gamma=1.0, baseline="mean")
TO_GO = bind("return_to_go", gamma=1.0)


def test_turns_are_runs_of_sampled_tokens() -> None:
    mask = torch.tensor([[1, 1, 0, 0, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]])
    assert turn_of_each_token(mask).tolist() == [[0, 0, -1, -1, 1, -1, 2, 2], [-1] * 8, [0] * 8]
    assert turn_of_each_token(torch.zeros(2, 0)).shape == (2, 0)


def test_each_token_gets_its_turns_advantage() -> None:
    turns = turn_of_each_token(torch.tensor([[1, 1, 0, 1, 0, 1], [1, 0, 0, 0, 0, 0]]))
    spread = spread_over_tokens([[0.5, -1.0], [2.0, 3.0, 4.0]], turns)
    assert spread.tolist() == [[0.5, 0.5, 0.0, -1.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0, 0.0, 0.0]]
    assert spread_over_tokens([[], []], turns).abs().max() == 0.0


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_totals_are_scaled_as_trl_does(scale: str) -> None:
    totals = torch.tensor([1.0, 1.0, 0.0, 0.8, 0.2, 0.1, 0.0, 0.6])
    groups = totals.view(2, 4)
    std = {
        "group": groups.std(1, keepdim=True) + 1e-4,
        "batch": totals.std() + 1e-4,
        "none": torch.ones(1),
    }[scale]
    expected = ((groups - groups.mean(1, keepdim=True)) / std).flatten().tolist()
    got, dropped = credit_groups([StepsPaid([0.0, r]) for r in totals.tolist()], 4, MEAN, scale=scale)
    assert [a for a, _ in got] == pytest.approx(expected, rel=1e-6)
    assert [b for _, b in got] == [a for a, _ in got]
    assert dropped == 0


def test_who_has_no_reward_leaves_the_group() -> None:
    paid = [StepsPaid([1.0]), None, StepsPaid([0.0]), StepsPaid([2.0])]
    got, dropped = credit_groups(paid, 4, MEAN, scale="none")
    assert got == [[0.0], [], [-1.0], [1.0]]
    got, dropped = credit_groups([StepsPaid([1.0]), None, None, None], 2, MEAN, scale="group")
    assert (got, dropped) == ([[], [], [], []], 2)


def test_steps_differ_within_a_completion() -> None:
    got, _ = credit_groups([StepsPaid([0.1, 1.0]), StepsPaid([0.0])], 2, TO_GO, scale="none")
    assert got == [[pytest.approx(1.1), 1.0], [pytest.approx(-1.1)]]


def test_states_reach_the_estimator() -> None:
    paid = [StepsPaid([0.0, 1.0], ["a", "b"]), StepsPaid([3.0], ["b"])]
    got, _ = credit_groups(paid, 2, bind("anchor", gamma=1.0), scale="none")
    assert got == [[-2.0, -2.0], [2.0]]


def test_bad_rewards_and_scales() -> None:
    with pytest.raises(RewardError, match="finite"):
        credit_groups([StepsPaid([math.inf]), StepsPaid([0.0])], 2, TO_GO, scale="none")
    with pytest.raises(UnknownNameError, match="scale_rewards"):
        credit_groups([], 2, TO_GO, scale="group_std")
