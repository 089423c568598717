"""Temporal differences: numbers worked by hand, and the ends of λ."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.trainers.advantages_returns import return_to_go
from trajgym.trainers.advantages_values import gae, vine

NUMBERS = st.floats(-2, 2, allow_subnormal=False)
REWARDS = [[1.0, 0.0, 2.0], [0.5]]
VALUES = [[1.0, 2.0, 1.5, 0.0], [0.25, 0.0]]


def test_one_step_is_reward_plus_what_the_state_gained() -> None:
    advantages = vine(REWARDS, gamma=0.5, values=VALUES)
    assert advantages == [[1.0 + 0.5 * 2.0 - 1.0, 0.5 * (0.5 * 1.5 - 2.0), 0.25 * (2.0 - 1.5)], [0.25]]
    assert gae(REWARDS, gamma=0.5, values=VALUES, lam=0.0) == advantages
    assert vine(REWARDS, gamma=0.5, values=VALUES, discount_weight="dropped")[0][2] == 0.5


def test_at_lambda_one_it_is_the_return_minus_the_value() -> None:
    (first, second) = gae(REWARDS, gamma=0.5, values=VALUES, lam=1.0)
    assert first == pytest.approx([1.5 - 1.0, 0.5 * (1.0 - 2.0), 0.25 * (2.0 - 1.5)])
    assert second == [0.25]


def test_a_cut_episode_goes_on_with_its_last_value() -> None:
    assert gae([[1.0]], gamma=0.5, values=[[0.0, 4.0]], lam=0.3) == [[3.0]]


@settings(max_examples=25)
@given(
    st.lists(st.lists(NUMBERS, min_size=1, max_size=4), min_size=2, max_size=4), st.floats(0, 1),
    st.sampled_from(["exact", "dropped"]),
)  # fmt: skip
def test_with_the_group_for_values_and_lambda_one_it_is_return_to_go(
    rewards: list[list[float]], gamma: float, weight: str
) -> None:
    by_group = gae(rewards, gamma=gamma, lam=1.0, discount_weight=weight)
    wanted = return_to_go(rewards, gamma=gamma, discount_weight=weight)
    for a, b in zip(by_group, wanted, strict=True):
        assert a == pytest.approx(b, abs=1e-9)


@pytest.mark.parametrize("lam", [-0.1, 1.5, float("nan"), None, "0.5"])
def test_absurd_lambda_is_named(lam: Any) -> None:
    with pytest.raises(ConfigError, match=r"lam must lie in \[0, 1\]"):
        gae(REWARDS, gamma=1.0, values=VALUES, lam=lam)


def test_other_wrong_options_are_named() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'group'"):
        gae(REWARDS, gamma=1.0, baseline="groups")
    with pytest.raises(UnknownNameError, match="discount_weight"):
        gae(REWARDS, gamma=1.0, discount_weight="")
    with pytest.raises(UnknownNameError, match="discount_weight"):
        vine(REWARDS, gamma=1.0, values=VALUES, discount_weight="")
    with pytest.raises(ConfigError, match="or give values"):
        gae([[1.0]], gamma=1.0)
