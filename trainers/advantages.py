"""Estimators: the rewards of one group become one advantage per turn.

An estimator is a pure function of a group. ``rewards[i][t]`` is the reward of turn t of trajectory i; the result
has the same ragged shape. Notation: ``G_{i,t} = Σ_{k≥t} γ^{k−t} r_{i,k}``, ``R_i = G_{i,0}``, ``c_t = γ^t``.

The objective is ``J = E[Σ_t γ^t r_t]``. Both estimators here are unbiased for its gradient: a baseline that does not
depend on the trajectory it is subtracted from leaves the expectation alone, and only such baselines are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from trajgym.errors import ConfigError, RewardError, UnknownNameError
from trajgym.registry import Registry

__all__ = ["ESTIMATORS", "Advantages", "Estimator", "Rewards", "return_to_go", "returns", "scale", "trajectory"]

Rewards: TypeAlias = Sequence[Sequence[float]]
Advantages: TypeAlias = list[list[float]]
Estimator: TypeAlias = Callable[..., Advantages]
"""``estimator(rewards, *, gamma, baseline=…) -> advantages``, both ragged with one list per trajectory."""

ESTIMATORS: Registry[Estimator] = Registry("estimator", entry_points="trajgym.estimators")

BASELINES = {"trajectory": ("loo", "mean", "none"), "return_to_go": ("step", "absorbing", "v0", "none")}
WEIGHTS = ("exact", "dropped")


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


def trajectory(rewards: Rewards, *, gamma: float, baseline: str = "loo") -> Advantages:
    """Give every turn the whole trajectory's return: ``A_{i,t} = R_i − b_i``.

    Args:
        rewards: The group, ragged.
        gamma: Discount per turn, in [0, 1].
        baseline: ``"loo"``, ``b_i = mean_{j≠i} R_j`` (unbiased); ``"mean"``, the mean of all (exactly ``(G−1)/G`` of
            it, the founding document's relative reward); ``"none"``, 0.

    Source: leave-one-out, Kool et al. 2019; group mean, GRPO, arXiv 2402.03300.

    >>> [[round(a, 4)] for [a] in trajectory([[1.0], [1.0], [0.0], [0.8]], gamma=1.0, baseline="mean")]
    [[0.3], [0.3], [-0.7], [0.1]]
    """
    _check(rewards, gamma, baseline, "trajectory")
    totals = [returns(r, gamma)[0] if r else 0.0 for r in rewards]
    if baseline == "mean":
        baselines = [math.fsum(totals) / len(totals)] * len(totals)
    elif baseline == "loo":
        baselines = _leave_one_out(totals)
    else:
        baselines = [0.0] * len(totals)
    return [[total - b] * len(r) for total, b, r in zip(totals, baselines, rewards, strict=True)]


def return_to_go(
    rewards: Rewards, *, gamma: float, baseline: str = "step", discount_weight: str = "exact"
) -> Advantages:
    """Give each turn what came after it: ``A_{i,t} = c_t·(G_{i,t} − b_{i,t})``.

    Args:
        rewards: The group, ragged.
        gamma: Discount per turn, in [0, 1].
        baseline: ``"step"``, mean of ``G_{j,t}`` over the other trajectories that reached turn t, 0 when none did;
            ``"absorbing"``, mean over all others, finished ones counting as 0; ``"v0"``,
            ``A = Σ_{k≥t} γ^k r_{i,k} − mean_{j≠i} R_j``, equal to ``trajectory`` when only the last step pays and
            γ = 1; ``"none"``, 0.
        discount_weight: ``"exact"`` keeps ``c_t = γ^t``, which the gradient of J needs; ``"dropped"`` sets it to 1, a
            common convention that changes the objective for γ < 1.

    Source: policy gradient with reward-to-go, Sutton et al. 1999; baselines, Greensmith et al. 2004.
    """
    _check(rewards, gamma, baseline, "return_to_go")
    if discount_weight not in WEIGHTS:
        raise UnknownNameError("discount_weight", discount_weight, WEIGHTS)
    to_go = [returns(r, gamma) for r in rewards]
    others = _leave_one_out([g[0] if g else 0.0 for g in to_go])
    advantages: Advantages = []
    for i, mine in enumerate(to_go):
        row = []
        for t, value in enumerate(mine):
            weight = gamma**t if discount_weight == "exact" else 1.0
            if baseline == "v0":
                row.append(weight * value - others[i])
                continue
            peers = [g[t] if t < len(g) else 0.0 for j, g in enumerate(to_go) if j != i]
            if baseline == "step":
                peers = [g[t] for j, g in enumerate(to_go) if j != i and t < len(g)]
            expected = math.fsum(peers) / len(peers) if peers and baseline != "none" else 0.0
            row.append(weight * (value - expected))
        advantages.append(row)
    return advantages


ESTIMATORS.register("trajectory", trajectory)
ESTIMATORS.register("return_to_go", return_to_go)


def scale(
    groups: Sequence[Advantages], how: str, *, groups_rewards: Sequence[Rewards] | None = None
) -> list[Advantages]:
    """Divide advantages by a spread.

    Args:
        groups: The advantages of every group of the batch.
        how: ``"none"``; ``"group_std"``, by the standard deviation (ddof 1, plus 1e-4) of each group's undiscounted
            returns, as GRPO does; ``"batch_std"``, by the root mean square of all turns' advantages.
        groups_rewards: The rewards behind them; needed by ``"group_std"``.
    """
    if how == "none":
        return [[list(row) for row in group] for group in groups]
    if how == "batch_std":
        values = [a for group in groups for row in group for a in row]
        rms = math.sqrt(math.fsum(a * a for a in values) / len(values)) if values else 0.0
        return [[[a / (rms + 1e-8) for a in row] for row in group] for group in groups]
    if how == "group_std":
        if groups_rewards is None:
            raise ConfigError('scale "group_std" needs the rewards of each group.')
        out = []
        for group, rewards in zip(groups, groups_rewards, strict=True):
            totals = [math.fsum(r) for r in rewards]
            mean = math.fsum(totals) / len(totals)
            std = math.sqrt(math.fsum((x - mean) ** 2 for x in totals) / (len(totals) - 1))
            out.append([[a / (std + 1e-4) for a in row] for row in group])
        return out
    raise UnknownNameError("advantage scale", how, ("none", "group_std", "batch_std"))


def _leave_one_out(totals: Sequence[float]) -> list[float]:
    """Return the mean of the others for each member."""
    return [
        math.fsum(x for j, x in enumerate(totals) if j != i) / (len(totals) - 1) if len(totals) > 1 else 0.0
        for i in range(len(totals))
    ]


def _check(rewards: Rewards, gamma: float, baseline: str, estimator: str) -> None:
    if not 0.0 <= gamma <= 1.0:
        raise ConfigError(f"gamma must lie in [0, 1], got {gamma!r}.")
    if baseline not in BASELINES[estimator]:
        raise UnknownNameError(f"baseline of {estimator!r}", baseline, BASELINES[estimator])
    if len(rewards) < 2 and baseline != "none":
        raise ConfigError(
            f"A group needs at least 2 trajectories to compare, got {len(rewards)}. Raise num_generations, "
            'or set baseline="none".'
        )
    for i, row in enumerate(rewards):
        for t, reward in enumerate(row):
            if not math.isfinite(reward):
                raise RewardError(f"Reward of trajectory {i}, turn {t} is {reward!r}; rewards must be finite numbers.")
