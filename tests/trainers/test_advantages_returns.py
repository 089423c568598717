"""Returns and what is made of them: numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajgym.errors import UnknownNameError
from trajgym.rewards import get_reward_function
from trajgym.trainers.advantages_returns import discounts, return_to_go, returns, trajectory

NUMBERS = st.floats(-2, 2, allow_subnormal=False)
ragged = st.lists(st.lists(NUMBERS, min_size=1, max_size=5), min_size=2, max_size=5)


def test_returns() -> None:
    assert returns([0.1, 0.1, 0.2, 0.6], 1.0) == pytest.approx([1.0, 0.9, 0.8, 0.6])
    assert returns([0.1, 0.1, 0.2, 0.6], 0.9)[0] == pytest.approx(0.7894)
    assert returns([1.0, 2.0], 0.0) == [1.0, 2.0]


def test_relative_rewards_of_four_answers() -> None:
    relative = trajectory([[1.0], [1.0], [0.0], [0.8]], gamma=1.0, baseline="mean")
    assert [a for row in relative for a in row] == pytest.approx([0.3, 0.3, -0.7, 0.1])
    assert sum(a for row in relative for a in row) == pytest.approx(0.0)
    others = trajectory([[1.0], [1.0], [0.0], [0.8]], gamma=1.0)
    assert [a for row in others for a in row] == pytest.approx([0.4, 0.4, -0.7 * 4 / 3, 0.4 / 3])


def test_four_answers_from_text_to_advantage() -> None:
    """The worked example: two right answers, a wrong one, and a right one that is 200 characters too long."""
    verbose = "48 + 24 = 72, and that is what they have."
    answers = ["48 + 24 = 72\n#### 72", "#### 72", "48 + 24 = 70\n#### 70", f"{verbose:<393}#### 72"]
    assert len(answers[3]) == 400
    paid = get_reward_function("length_penalty")(completions=answers, answer=["72"] * 4)
    assert paid == pytest.approx([1.0, 1.0, 0.0, 0.8])
    relative = trajectory([[reward] for reward in paid], gamma=1.0, baseline="mean")
    assert [a for row in relative for a in row] == pytest.approx([0.3, 0.3, -0.7, 0.1])


@pytest.mark.parametrize("baseline", ["loo", "mean"])
def test_a_group_of_equals_gets_exactly_nothing(baseline: str) -> None:
    assert trajectory([[0.7]] * 5, gamma=1.0, baseline=baseline) == [[0.0]] * 5


def test_return_to_go_by_hand() -> None:
    # The second trajectory ends a turn earlier, so the first has nobody to be compared with in its last.
    assert return_to_go([[1.0, 2.0], [4.0]], gamma=0.5) == [[2.0 - 4.0, 0.5 * 2.0], [4.0 - 2.0]]
    assert return_to_go([[1.0, 2.0], [4.0]], gamma=0.5, discount_weight="dropped")[0][1] == 2.0
    three = [[1.0, 2.0], [4.0], [0.0, 1.0]]
    assert return_to_go(three, gamma=1.0)[0] == [3.0 - (4.0 + 1.0) / 2, 2.0 - 1.0]
    assert return_to_go(three, gamma=1.0, baseline="absorbing")[0] == [3.0 - (4.0 + 1.0) / 2, 2.0 - (0.0 + 1.0) / 2]
    assert return_to_go(three, gamma=1.0, baseline="v0")[0] == [3.0 - 2.5, 2.0 - 2.5]


def test_who_had_earned_the_same_is_the_better_comparison() -> None:
    group = [[1.0, 4.0], [1.0, 2.0], [0.0, 8.0], [0.0, 0.0], [3.0, 6.0]]
    found = return_to_go(group, gamma=1.0, baseline="earned")
    others = (2.0 + 8.0 + 0.0 + 6.0) / 4
    assert found[0] == [5.0 - (3.0 + 8.0 + 0.0 + 9.0) / 4, 4.0 - (2.0 + others) / 2]
    assert found[4][1] == 6.0 - (4.0 + 2.0 + 8.0 + 0.0) / 4  # nobody else had 3
    # Sums that ought to be equal are, whatever the digits that floats lose: here 0.1 + 0.2 - 0.3 is 3e-17.
    zero = return_to_go(
        [[0.1, 0.2, -0.3, 1.0], [0.0, 0.0, 0.0, 5.0], [1.0, 0.0, 0.0, 0.0]], gamma=1.0, baseline="earned"
    )
    assert zero[0][3] == pytest.approx(1.0 - (5.0 + 2.5) / 2)
    alone = return_to_go(
        [[0.1, 0.2, -0.3, 1.0], [0.0, 0.0, 0.0, 5.0], [0.0, 0.0, 0.0, 0.0], [1e9, 0.0, 0.0, 3.0]],
        gamma=1.0,
        baseline="earned",
    )
    assert alone[0][3] == pytest.approx(1.0 - (5.0 + 0.0 + 8.0 / 3) / 3)  # however much another has earned
    # The same rewards in another order are the same sum.
    mixed = return_to_go(
        [[0.1, 0.2, 0.3, 1.0], [0.3, 0.2, 0.1, 0.0], [9.0, 0.0, 0.0, 5.0]], gamma=1.0, baseline="earned"
    )
    assert mixed[0][3] == pytest.approx(1.0 - (0.0 + (0.0 + 5.0) / 2) / 2)


@settings(max_examples=25)
@given(ragged)
def test_where_the_end_alone_pays_all_have_earned_the_same(rewards: list[list[float]]) -> None:
    terminal = [[0.0] * (len(row) - 1) + [row[-1]] for row in rewards]
    for gamma in (1.0, 0.9):
        assert return_to_go(terminal, gamma=gamma, baseline="earned") == return_to_go(terminal, gamma=gamma)


@settings(max_examples=25)
@given(ragged)
def test_v0_equals_trajectory_for_terminal_rewards(rewards: list[list[float]]) -> None:
    terminal = [[0.0] * (len(row) - 1) + [row[-1]] for row in rewards]
    by_turn = return_to_go(terminal, gamma=1.0, baseline="v0")
    for a, b in zip(by_turn, trajectory(terminal, gamma=1.0), strict=True):
        assert a == pytest.approx(b, abs=1e-9)


@settings(max_examples=25)
@given(ragged)
def test_one_turn_is_the_classic_case(rewards: list[list[float]]) -> None:
    single = [[row[0]] for row in rewards]
    for a, b in zip(return_to_go(single, gamma=0.3), trajectory(single, gamma=0.9), strict=True):
        assert a == pytest.approx(b, abs=1e-9)


@settings(max_examples=25)
@given(ragged)
def test_constants_at_the_end_and_at_each_step(rewards: list[list[float]]) -> None:
    plain = trajectory(rewards, gamma=1.0)
    at_end = trajectory([[*row[:-1], row[-1] + 2.0] for row in rewards], gamma=1.0)
    for a, b in zip(plain, at_end, strict=True):
        assert a == pytest.approx(b, abs=1e-9)
    each = trajectory([[x + 2.0 for x in row] for row in rewards], gamma=1.0)
    favoured = any(a != pytest.approx(b, abs=1e-6) for a, b in zip(plain, each, strict=True))
    assert favoured == (len({len(row) for row in rewards}) > 1)  # a bonus per step favours long trajectories


@settings(max_examples=25)
@given(st.lists(NUMBERS, min_size=2, max_size=8))
def test_advantages_vary_no_more_than_rewards(rewards: list[float]) -> None:
    relative = trajectory([[r] for r in rewards], gamma=1.0, baseline="mean")
    values = [row[0] for row in relative]
    assert np.var(values) <= np.var(rewards) + 1e-12
    assert np.mean(np.square(values)) <= np.mean(np.square(rewards)) + 1e-12


def test_discounts() -> None:
    assert discounts(3, 0.5, "exact") == [1.0, 0.5, 0.25]
    assert discounts(2, 0.0, "exact") == [1.0, 0.0]
    assert discounts(3, 0.5, "dropped") == [1.0, 1.0, 1.0]
    with pytest.raises(UnknownNameError, match="discount_weight"):
        discounts(3, 0.5, "no")
