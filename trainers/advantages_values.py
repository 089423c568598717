"""Estimators from values: how much better a turn went than a value function had expected.

``values[i]`` are V(s_0) … V(s_{T_i}), one more than turns; the last is 0 where the episode terminated, and the value of
the state it was cut in where a budget ended it and one bootstraps. Notation as in
:mod:`trajgym.trainers.advantages_returns`; ``δ_t = r_t + γ·V(s_{t+1}) − V(s_t)``.
"""

from __future__ import annotations

from collections.abc import Sequence

from trajgym.errors import ConfigError
from trajgym.rewards.functions import is_finite
from trajgym.trainers.advantages_base import Advantages, Rewards, Values, check_choice, check_others, estimator
from trajgym.trainers.advantages_returns import discounts, mean_of_others, returns

__all__ = ["gae", "vine"]


@estimator("gae", exact_at={"lam": 1.0})
def gae(
    rewards: Rewards,
    *,
    gamma: float,
    values: Values | None = None,
    lam: float = 0.95,
    baseline: str = "group",
    discount_weight: str = "exact",
) -> Advantages:
    """Mix temporal differences over all horizons: ``A_{i,t} = c_t·Σ_{k≥t} (γλ)^{k−t} δ_{i,k}``.

    At λ = 1 the sum telescopes to ``c_t·(G_{i,t} − V(s_t))`` and is unbiased with whatever V that does not depend on
    what follows s_t (and is 0 behind the end). Below 1 it leans on V, which lowers the variance and brings a bias as
    large as V is wrong; with the true values there is none.

    Args:
        rewards: The group, ragged; with ``values`` a single trajectory will do.
        gamma: Discount per turn, in [0, 1].
        values: V of each state, a value head's for instance. Where there are none, the others stand in for it.
        lam: λ, in [0, 1].
        baseline: What stands in for missing values: ``"group"``, for V(s_t) the mean of ``G_{j,t}`` over the other
            trajectories that reached turn t, 0 when none did, and 0 behind a trajectory's own end; ``"none"``, 0.
        discount_weight: See :func:`trajgym.trainers.advantages_returns.discounts`.

    Raises:
        RewardError: For rewards that are not finite numbers, or a trajectory without turns.
        ConfigError: For fewer than two trajectories to compare, values that do not fit, or an option out of range.

    Source: Schulman et al. 2016, arXiv 1506.02438, equation 16, per turn instead of per token.

    >>> gae([[1.0, 2.0]], gamma=1.0, values=[[2.5, 1.5, 0.0]], lam=0.5)
    [[0.25, 0.5]]
    """
    if not (is_finite(lam) and 0.0 <= lam <= 1.0):
        raise ConfigError(f"lam must lie in [0, 1], got {lam!r}.")
    check_choice("baseline of 'gae'", baseline, ("group", "none"))
    if values is None:
        values = _group_values(rewards, gamma, baseline)
    advantages: Advantages = []
    for row, v in zip(rewards, values, strict=True):
        weights = discounts(len(row), gamma, discount_weight)
        sums = returns(_differences(row, v, gamma), gamma * lam)
        advantages.append([weight * a for weight, a in zip(weights, sums, strict=True)])
    return advantages


@estimator("vine", unbiased=True)
def vine(rewards: Rewards, *, gamma: float, values: Values, discount_weight: str = "exact") -> Advantages:
    """Compare a turn with fresh attempts from before and behind it: ``A_{i,t} = c_t·(r_t + γ·V(s_{t+1}) − V(s_t))``.

    Unbiased when each V is the mean return of independent rollouts that start in a copy of the state (0 behind the
    end): V(s_t) is then a baseline, and V(s_{t+1}) is right on average. With a value head's values it is not; that is
    ``gae`` at λ = 0.

    Args:
        rewards: The group, ragged; a single trajectory will do.
        gamma: Discount per turn, in [0, 1].
        values: V_MC of each state.
        discount_weight: See :func:`trajgym.trainers.advantages_returns.discounts`.

    Raises:
        RewardError: For rewards that are not finite numbers, or a trajectory without turns.
        ConfigError: For values that do not fit, or an option out of range.

    Source: VinePPO, Kazemnejad et al. 2024, arXiv 2410.01679.

    >>> vine([[1.0, 2.0]], gamma=1.0, values=[[2.5, 1.5, 0.0]])
    [[0.0, 0.5]]
    """
    return [
        [w * d for w, d in zip(discounts(len(row), gamma, discount_weight), _differences(row, v, gamma), strict=True)]
        for row, v in zip(rewards, values, strict=True)
    ]


def _differences(row: Sequence[float], v: Sequence[float], gamma: float) -> list[float]:
    """Return ``δ_t`` of one trajectory."""
    return [reward + gamma * v[t + 1] - v[t] for t, reward in enumerate(row)]


def _group_values(rewards: Rewards, gamma: float, baseline: str) -> list[list[float]]:
    """Let the other members of the group say what each state is worth."""
    if baseline == "none":
        return [[0.0] * (len(row) + 1) for row in rewards]
    check_others(rewards, 'set baseline="none", or give values')
    to_go = [returns(row, gamma) for row in rewards]
    return [[*(mean_of_others(to_go, i, t, "step") for t in range(len(row))), 0.0] for i, row in enumerate(rewards)]
