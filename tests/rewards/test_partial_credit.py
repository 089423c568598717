"""The example of a custom reward: its tiers, and what it does not pay for."""

from __future__ import annotations

import pytest

from trajgym.errors import ConfigError, RewardError
from trajgym.rewards import get_reward_function, partial_credit


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("#### 72", 1.0),
        ("#### 72.009", 1.0),
        ("#### 72.01", 0.8),
        ("#### 72.5", 0.8),
        ("72.5 =", 0.0),  # cut off
        ("x = 72.5", 0.9),
        ("Step 1: #### 72.5", 0.9),
        ("x = 72", 1.0),  # no more than 1
        ("#### 73", 0.5),
        ("#### 76.9", 0.5),
        ("so = #### 70", 0.6),
        ("#### 77", 0.0),
        ("x = 100", 0.0),
        ("step = step", 0.0),
        ("", 0.0),
    ],
)
def test_tiers(text: str, value: float) -> None:
    assert partial_credit([text], ground_truth=["72"]) == [pytest.approx(value)]
    assert get_reward_function("partial_credit")([text], answer=["72"]) == [pytest.approx(value)]


def test_errors_are_typed() -> None:
    with pytest.raises(RewardError, match="partial_credit compares numbers"):
        partial_credit(["72"], answer=["red"])
    with pytest.raises(ConfigError, match="has 2 values for 1"):
        partial_credit(["72"], answer=["72", "72"])
