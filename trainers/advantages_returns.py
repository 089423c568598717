"""Estimators from returns: what a trajectory earned, or what it earned from a turn on, minus what the others did.

Notation: ``G_{i,t} = Σ_{k≥t} γ^{k−t} r_{i,k}``, ``R_i = G_{i,0}``, ``c_t = γ^t``, ``T_i`` the number of turns. The
objective is ``J = E[Σ_t γ^t r_t]``. Both are unbiased for its gradient: a baseline that depends on other trajectories,
and of its own on what came before the turn alone, leaves the expectation as it is, and only such baselines are used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from trajgym.trainers.advantages_base import Advantages, Rewards, check_choice, check_others, estimator

__all__ = ["WEIGHTS", "discounts", "mean_of_others", "return_to_go", "returns", "trajectory"]

WEIGHTS = ("exact", "dropped")
BASELINES = ("step", "earned", "absorbing", "v0", "none")

_SAME = 1e-9  # of the largest reward: how far two sums may lie apart that come from rewards like 0.1 and 0.2


def returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """Return the discounted return from each turn on, ``G_t = r_t + γ·G_{t+1}``.

    >>> [round(g, 4) for g in returns([0.1, 0.1, 0.2, 0.6], 1.0)]
    [1.0, 0.9, 0.8, 0.6]
    """
    out: list[float] = []
    value = 0.0
    for reward in reversed(rewards):
        value = reward + gamma * value
        out.append(value)
    return out[::-1]


def discounts(length: int, gamma: float, discount_weight: str) -> list[float]:
    """Return the weight of each turn's advantage.

    Args:
        length: Number of turns.
        gamma: Discount per turn.
        discount_weight: ``"exact"``, ``c_t = γ^t``, which the gradient of J needs; ``"dropped"``, 1, a common
            convention that changes the objective for γ < 1.

    Raises:
        UnknownNameError: For another ``discount_weight``.
    """
    check_choice("discount_weight", discount_weight, WEIGHTS)
    return [gamma**t if discount_weight == "exact" else 1.0 for t in range(length)]


def mean_of_others(to_go: Sequence[Sequence[float]], i: int, t: int, baseline: str) -> float:
    """Return what the other members of a group got from turn t on.

    Args:
        to_go: ``G_{j,t}``, ragged.
        i: Whose baseline it is.
        t: The turn.
        baseline: ``"step"``, the mean over the others that reached turn t, 0 when none did; ``"absorbing"``, the mean
            over all others, where those that have ended count as 0; ``"none"``, 0.
    """
    if baseline == "none":
        return 0.0
    others = [row[t] if t < len(row) else 0.0 for j, row in enumerate(to_go) if j != i]
    if baseline == "step":
        others = [row[t] for j, row in enumerate(to_go) if j != i and t < len(row)]
    return math.fsum(others) / len(others) if others else 0.0


class Earned(NamedTuple):
    """What a trajectory was paid so far.

    Args:
        total: The sum of its rewards.
        largest: The largest of them, without its sign.
    """

    total: float
    largest: float

    def equals(self, other: Earned) -> bool:
        """Whether it is the same as another's, but for the digits that floats lose."""
        return abs(self.total - other.total) <= _SAME * max(self.largest, other.largest)


def mean_of_equals(to_go: Sequence[Sequence[float]], earned: Sequence[Sequence[Earned]], i: int, t: int) -> float:
    """Return what those got from turn t on who had earned the same by then, and all others that reached it as one more.

    Who has earned the same has often come equally far, so their mean is close to the value of the state. It is that of
    few, though, or of none: the mean of all others counts as one of them.

    Args:
        to_go: ``G_{j,t}``, ragged.
        earned: What each had earned before turn t, ragged.
        i: Whose baseline it is.
        t: The turn.
    """
    others = [j for j, row in enumerate(to_go) if j != i and t < len(row)]
    equals = [to_go[j][t] for j in others if earned[j][t].equals(earned[i][t])]
    mean = mean_of_others(to_go, i, t, "step")
    return mean if len(equals) == len(others) else math.fsum([*equals, mean]) / (len(equals) + 1)


@estimator("trajectory", unbiased=True)
def trajectory(rewards: Rewards, *, gamma: float, baseline: str = "loo") -> Advantages:
    """Give every turn the whole trajectory's return: ``A_{i,t} = R_i − b_i``. Unbiased.

    Args:
        rewards: The group, ragged.
        gamma: Discount per turn, in [0, 1].
        baseline: ``"loo"``, ``b_i = mean_{j≠i} R_j``; ``"mean"``, the mean of all, which makes it exactly
            ``(G−1)/G`` of that (GRPO's relative reward); ``"none"``, 0.

    Raises:
        RewardError: For rewards that are not finite numbers, or a trajectory without turns.
        ConfigError: For fewer than two trajectories with a baseline, or another gamma or baseline.

    Source: leave-one-out, Kool et al. 2019; group mean, GRPO, arXiv 2402.03300.

    >>> [[round(a, 4)] for [a] in trajectory([[1.0], [1.0], [0.0], [0.8]], gamma=1.0, baseline="mean")]
    [[0.3], [0.3], [-0.7], [0.1]]
    """
    check_choice("baseline of 'trajectory'", baseline, ("loo", "mean", "none"))
    totals = [returns(row, gamma)[0] for row in rewards]
    if baseline == "none":
        baselines = [0.0] * len(totals)
    else:
        check_others(rewards)
        baselines = _others(totals) if baseline == "loo" else [math.fsum(totals) / len(totals)] * len(totals)
    return [[total - b] * len(row) for total, b, row in zip(totals, baselines, rewards, strict=True)]


@estimator("return_to_go", unbiased=True)
def return_to_go(
    rewards: Rewards, *, gamma: float, baseline: str = "step", discount_weight: str = "exact"
) -> Advantages:
    """Give each turn what came after it: ``A_{i,t} = c_t·(G_{i,t} − b_{i,t})``. Unbiased.

    Args:
        rewards: The group, ragged.
        gamma: Discount per turn, in [0, 1].
        baseline: ``"step"``, mean of ``G_{j,t}`` over the other trajectories that reached turn t, 0 when none did;
            ``"earned"``, over those of them that had earned the same before turn t, see :func:`mean_of_equals`, which
            is the same where nothing is paid before the end; ``"absorbing"``, over all others, finished ones counting
            as 0; ``"v0"``,
            ``A = Σ_{k≥t} γ^k r_{i,k} − mean_{j≠i} R_j``, equal to ``trajectory`` when only the last step pays and
            γ = 1; ``"none"``, 0.
        discount_weight: See :func:`discounts`; with ``"dropped"`` and γ < 1 it is biased.

    Raises:
        RewardError: For rewards that are not finite numbers, or a trajectory without turns.
        ConfigError: For fewer than two trajectories with a baseline, or a value of an option that does not exist.

    All are unbiased: what a trajectory has earned before turn t is part of the state in which the turn is taken, and
    all else comes from others.

    Source: policy gradient with reward-to-go, Sutton et al. 1999; baselines, Greensmith et al. 2004.
    """
    check_choice("baseline of 'return_to_go'", baseline, BASELINES)
    if baseline != "none":
        check_others(rewards)
    to_go = [returns(row, gamma) for row in rewards]
    earned = [[_earned(row[:t]) for t in range(len(row))] for row in rewards] if baseline == "earned" else []
    start = _others([row[0] for row in to_go]) if baseline == "v0" else [0.0] * len(to_go)
    advantages: Advantages = []
    for i, mine in enumerate(to_go):
        row = []
        for t, (weight, value) in enumerate(zip(discounts(len(mine), gamma, discount_weight), mine, strict=True)):
            if baseline == "earned":
                expected = mean_of_equals(to_go, earned, i, t)
            else:
                expected = 0.0 if baseline == "v0" else mean_of_others(to_go, i, t, baseline)
            row.append(weight * (value - expected) - start[i])
        advantages.append(row)
    return advantages


def _others(totals: Sequence[float]) -> list[float]:
    """Return the mean of the others for each of at least two members."""
    return [math.fsum(x for j, x in enumerate(totals) if j != i) / (len(totals) - 1) for i in range(len(totals))]


def _earned(rewards: Sequence[float]) -> Earned:
    return Earned(math.fsum(rewards), max(map(abs, rewards), default=0.0))
