"""What may be tried, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.tune_space import PRESETS, Range, applied, draw, grid, read_space


def test_the_grid_preset_has_27_different_runs() -> None:
    combinations = grid(read_space(PRESETS["grid"].space, GRPOConfig))
    assert len({tuple(c.values()) for c in combinations}) == 27
    assert {"learning_rate": 5e-5, "lora_rank": 8, "kl_coef": 0.2} in combinations


def test_random_draws_follow_their_distributions() -> None:
    space = read_space(PRESETS["random"].space, GRPOConfig)
    drawn = [draw(space, seed) for seed in range(600)]
    assert drawn == [draw(space, seed) for seed in range(600)]
    assert {d["lora_rank"] for d in drawn} == {4, 8, 16, 32, 64}
    rates = [d["learning_rate"] for d in drawn]
    assert all(1e-6 <= rate <= 1e-4 for rate in rates)
    assert sum(rate < 1e-5 for rate in rates) / 600 == pytest.approx(0.5, abs=0.07)  # half of the decades
    penalties = [d["kl_coef"] for d in drawn]
    assert all(0.01 <= p <= 0.5 for p in penalties)
    assert sum(penalties) / 600 == pytest.approx(0.255, abs=0.02)


def test_whole_ranges_give_whole_numbers() -> None:
    space = read_space({"lora_rank": {"low": 1, "high": 64, "log": True}, "minibatches": {"low": 1, "high": 3}})
    drawn = [draw(space, seed) for seed in range(100)]
    assert all(isinstance(d["lora_rank"], int) and 1 <= d["lora_rank"] <= 64 for d in drawn)
    assert {d["minibatches"] for d in drawn} == {1, 2, 3}
    assert space["lora_rank"] == Range(1, 64, log=True)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "nothing to tune"),
        ({"learning_rat": [1]}, "Did you mean 'learning_rate'"),
        ({"seed": [1, 2]}, "cannot be tuned"),
        ({"gamma": []}, "no values"),
        ({"gamma": [0.9, 0.9]}, "twice"),
        ({"gamma": 0.9}, "list of values"),
        ({"gamma": "0.9"}, "list of values"),
        ({"gamma": [object()]}, "JSON values"),
        ({"gamma": {"low": 0.1}}, "two finite numbers"),
        ({"gamma": {"low": 0.9, "high": 0.1}}, "low < high"),
        ({"gamma": {"low": 0.0, "high": 0.1, "log": True}}, "above 0"),
        ({"gamma": {"low": 0.0, "high": 0.1, "log": 1}}, "true or false"),
        ({"gamma": {"low": 0.0, "high": 0.1, "logg": True}}, "Did you mean 'log'"),
        ({"gamma": {"low": False, "high": float("inf")}}, "two finite numbers"),
        ({"gamma.x": [1]}, "no mapping"),
    ],
)
def test_what_is_no_space(space: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_space(space, GRPOConfig)


def test_unknown_options_list_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="kl_coef"):
        read_space({"kl": [0.1]}, GRPOConfig)


def test_a_grid_has_no_ranges() -> None:
    with pytest.raises(ConfigError, match="no ranges: learning_rate, kl_coef"):
        grid(read_space(PRESETS["random"].space))


def test_nested_keys() -> None:
    read_space({"env_kwargs.reward": ["sparse", "dense"]}, GRPOConfig)
    before = {"env_kwargs": {"split": "train"}}
    assert applied(before, {"env_kwargs.reward": "dense"}) == {"env_kwargs": {"split": "train", "reward": "dense"}}
    assert before == {"env_kwargs": {"split": "train"}}
