"""Lengths have a unit, and tokens are counted or not known; never guessed."""

from __future__ import annotations

from typing import Any

import pytest

from trajgym.errors import ConfigError, RewardError
from trajgym.rewards.lengths import check_unit, length
from trajgym.types import Action, Observation, Step


def said(text: str, *ids: int) -> Step:
    return Step(Action(text, token_ids=ids), Observation())


def test_characters_and_tokens_of_all_turns() -> None:
    steps = [said("one two", 1, 2, 9), said("three", 3)]
    assert length(steps, "characters", None) == 12
    assert length(steps, "tokens", None) == 4
    assert length(steps, "tokens", lambda text: len(text.split())) == 3
    assert length([], "tokens", None) == length([said("")], "tokens", None) == 0


def test_tokens_that_are_not_known() -> None:
    with pytest.raises(RewardError, match="Pass count="):
        length([said("one", 1), said("two")], "tokens", None)


@pytest.mark.parametrize(
    ("unit", "count", "message"),
    [
        ("words", None, "unit of length"),
        ("token", None, "Did you mean 'tokens'"),
        ("characters", len, "count="),
        ("tokens", 3, "count="),
    ],
)
def test_wrong_units(unit: str, count: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_unit(unit, count)
