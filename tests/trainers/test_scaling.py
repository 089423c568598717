"""Scales: of the batch itself, and of the batches before it."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajgym.errors import CheckpointError, ConfigError, RewardError, UnknownNameError
from trajgym.trainers import advantages
from trajgym.trainers.advantages_returns import return_to_go, trajectory
from trajgym.trainers.scaling import EmaStd, scale

REWARDS = [[[1.0], [0.0], [0.0], [1.0]], [[0.5], [0.5]]]
BATCH = [trajectory(r, gamma=1.0, baseline="mean") for r in REWARDS]


def test_scales_of_the_batch() -> None:
    assert scale(BATCH, "none") == BATCH
    by_group = scale(BATCH, "group_std", groups_rewards=REWARDS)
    assert by_group[0][0][0] == pytest.approx(0.5 / (np.std([1, 0, 0, 1], ddof=1) + 1e-4))
    assert by_group[1] == [[0.0], [0.0]]
    values = [a for g in scale(BATCH, "batch_std") for row in g for a in row]
    assert np.mean(np.square(values)) == pytest.approx(1.0)
    assert scale([], "batch_std") == []
    assert advantages.scale is scale


def test_a_group_is_divided_by_the_spread_of_what_its_advantages_are_made_of() -> None:
    rewards = [[0.3], [0.0, 0.0, 0.3], [0.0, 0.3]]  # equal but for the discount
    group = trajectory(rewards, gamma=0.9, baseline="mean")
    (scaled,) = scale([group], "group_std", groups_rewards=[rewards], gamma=0.9)
    spread = np.std([0.3, 0.3 * 0.81, 0.3 * 0.9], ddof=1)
    assert scaled == [pytest.approx([a / (spread + 1e-4) for a in row]) for row in group]


def test_where_nobody_got_more_nothing_is_divided_by_next_to_nothing() -> None:
    rewards = [[0.1, 0.1, 0.1], [0.3]]  # equal, though not in floats
    group = return_to_go(rewards, gamma=1.0)
    assert group[0][1] == pytest.approx(0.2)  # a turn that no other trajectory reached
    assert scale([group], "group_std", groups_rewards=[rewards]) == [[[0.0] * 3, [0.0]]]


@pytest.mark.parametrize(
    ("how", "rewards", "error", "message"),
    [
        ("group_sdt", None, UnknownNameError, "Did you mean 'group_std'"),
        ("ema_std", None, UnknownNameError, "EmaStd"),
        ("group_std", None, ConfigError, "pass groups_rewards"),
        ("group_std", [[[1.0]]], ConfigError, "pass groups_rewards"),
        ("group_std", [[[1.0]], [[1.0], [2.0]]], ConfigError, "at least 2 trajectories, got 1"),
        ("group_std", [[[math.nan], [1.0]], [[1.0], [2.0]]], RewardError, "finite"),
    ],
)
def test_wrong_use_is_named(how: str, rewards: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        scale(BATCH, how, groups_rewards=rewards)


def test_numbers_that_are_not_finite_are_named() -> None:
    for wrong in (math.nan, math.inf):
        with pytest.raises(RewardError, match="finite"):
            scale([[[wrong], [1.0]]], "batch_std")
        spread = EmaStd()
        with pytest.raises(RewardError, match="finite"):
            spread([[[wrong]]])
        assert spread([[[2.0]]]) == [[[2.0]]]  # as if nothing had been


def test_only_earlier_batches_count() -> None:
    spread = EmaStd(decay=0.5)
    assert spread([[[2.0], [-2.0]]]) == [[[2.0], [-2.0]]]
    assert spread.spread == 2.0
    assert spread([[[8.0, 0.0]]]) == [[[4.0, 0.0]]]
    # The mean squares 4 and 32 have weights 1/4 and 1/2.
    assert spread.spread == pytest.approx(math.sqrt((0.25 * 4 + 0.5 * 32) / 0.75))


def test_batches_without_a_signal_say_nothing_of_its_size() -> None:
    spread = EmaStd()
    spread([[[3.0], [-3.0]]])
    for _ in range(100):
        assert spread([[[0.0], [0.0]]]) == [[[0.0], [0.0]]]
    assert spread.spread == pytest.approx(3.0)
    assert spread([]) == []
    fresh = EmaStd()
    fresh([trajectory([[0.1]] * 7, gamma=1.0)])  # whose mean is not 0.1 in floats
    assert fresh.spread == 1.0


@settings(max_examples=25)
@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=2, max_size=6), st.integers(0, 5))
def test_a_resumed_run_goes_on_bit_for_bit(batches: list[list[float]], cut: int) -> None:
    whole, first, resumed = EmaStd(), EmaStd(), EmaStd()
    wanted = [whole([[row]]) for row in batches]
    got = [first([[row]]) for row in batches[:cut]]
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    got += [resumed([[row]]) for row in batches[cut:]]
    assert got == wanted
    assert resumed.state_dict() == whole.state_dict()


@pytest.mark.parametrize("state", [{}, {"sum": 1.0}, {"sum": math.nan, "weight": 1.0}, {"sum": -1.0, "weight": 0.1}])
def test_other_states_are_refused(state: dict[str, float]) -> None:
    with pytest.raises(CheckpointError, match="sum and weight"):
        EmaStd().load_state_dict(state)


@pytest.mark.parametrize("decay", [1.0, -0.1, math.nan, None])
def test_absurd_decay_is_named(decay: Any) -> None:
    with pytest.raises(ConfigError, match=r"decay must lie in \[0, 1\)"):
        EmaStd(decay)
