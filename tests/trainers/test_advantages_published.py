"""The published forms, by hand from their formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.trainers.advantages_published import gigpo, grpo_process, mt_grpo, rebn

REWARDS = [[0.5, 0.3, 1.0], [0.2], [0.5, 0.6]]
STATES = [["a", "b", "c"], ["a"], ["a", "c"]]


def z(values: list[float], place: int) -> float:
    """Return how many sample standard deviations a value lies above the mean."""
    return float((values[place] - np.mean(values)) / np.std(values, ddof=1))


def test_grpo_process_sums_rewards_that_were_normalised_together() -> None:
    flat = [0.5, 0.3, 1.0, 0.2, 0.5, 0.6]
    r = [z(flat, k) for k in range(6)]
    first, second, third = grpo_process(REWARDS, gamma=1.0)
    assert first == pytest.approx([r[0] + r[1] + r[2], r[1] + r[2], r[2]], rel=1e-5)
    assert second == pytest.approx([r[3]], rel=1e-5)
    assert third == pytest.approx([r[4] + r[5], r[5]], rel=1e-5)
    assert grpo_process(REWARDS, gamma=0.5)[2][0] == pytest.approx(r[4] + 0.5 * r[5], rel=1e-5)
    assert grpo_process(REWARDS, gamma=1.0, norm="none")[0][2] == pytest.approx(1.0 - np.mean(flat))


def test_mt_grpo_adds_the_outcome_to_the_turn() -> None:
    two_turns = [[0.3, 1.0], [0.1, 0.0], [0.2, 0.0]]
    turn, outcome = [0.3, 0.1, 0.2], [1.0, 0.0, 0.0]
    for i, row in enumerate(mt_grpo(two_turns, gamma=1.0, turn_weight=0.4)):
        assert row == pytest.approx([0.4 * z(turn, i) + z(outcome, i), z(outcome, i)], rel=1e-5)


def test_mt_grpo_compares_those_that_reached_a_turn() -> None:
    first, second, third = mt_grpo(REWARDS, gamma=1.0)
    start, then = [0.5, 0.2, 0.5], [0.3, 0.6]
    assert first == pytest.approx([z(start, 0) + z(then, 0), z(then, 0), 0.0], rel=1e-5)  # alone in the last turn
    assert second == pytest.approx([z(start, 1)], rel=1e-5)
    assert third == pytest.approx([z(start, 2) + z(then, 1), z(then, 1)], rel=1e-5)


def test_rebn_normalises_what_is_still_to_come() -> None:
    flat = [1.8, 1.3, 1.0, 0.2, 1.1, 0.6]
    assert np.concatenate(rebn(REWARDS, gamma=1.0)) == pytest.approx([z(flat, k) for k in range(6)], rel=1e-5)
    halved = [0.5 + 0.15 + 0.25, 0.3 + 0.5, 1.0, 0.2, 0.8, 0.6]
    assert np.concatenate(rebn(REWARDS, gamma=0.5)) == pytest.approx([z(halved, k) for k in range(6)], rel=1e-5)


@pytest.mark.parametrize("omega", [0.0, 1.0, 0.3])
def test_gigpo_adds_both_levels(omega: float) -> None:
    totals = [1.8, 0.2, 1.1]
    gamma = 0.5
    at_a, at_c = [0.9, 0.2, 0.8], [1.0, 0.6]  # what is still to come from there
    first, second, third = gigpo(REWARDS, gamma=gamma, states=STATES, omega=omega)
    e = [z(totals, i) for i in range(3)]
    # State b was visited once, which gives nothing at the level of states.
    assert first == pytest.approx([e[0] + omega * z(at_a, 0), e[0], e[0] + omega * z(at_c, 0)], rel=1e-5)
    assert second == pytest.approx([e[1] + omega * z(at_a, 1)], rel=1e-5)
    assert third == pytest.approx([e[2] + omega * z(at_a, 2), e[2] + omega * z(at_c, 1)], rel=1e-5)


def test_gigpo_without_a_second_visit_is_grpo() -> None:
    alone = [[f"{i}-{t}" for t in range(len(row))] for i, row in enumerate(REWARDS)]
    got = gigpo(REWARDS, gamma=0.9, states=alone)
    assert [len(set(row)) for row in got] == [1, 1, 1]
    assert [row[0] for row in got] == pytest.approx([z([1.8, 0.2, 1.1], i) for i in range(3)], rel=1e-5)


@pytest.mark.parametrize("function", [grpo_process, mt_grpo, rebn])
def test_equal_rewards_give_nothing(function: Any) -> None:
    assert function([[0.25], [0.25], [0.25]], gamma=1.0) == [[0.0], [0.0], [0.0]]


def test_wrong_options_are_named() -> None:
    with pytest.raises(UnknownNameError, match="norm of 'rebn'"):
        rebn(REWARDS, gamma=1.0, norm="std1")
    with pytest.raises(ConfigError, match="turn_weight must be a number of at least 0"):
        mt_grpo(REWARDS, gamma=1.0, turn_weight=float("nan"))
    with pytest.raises(ConfigError, match="omega must be a number of at least 0, got -1"):
        gigpo(REWARDS, gamma=1.0, states=STATES, omega=-1)
