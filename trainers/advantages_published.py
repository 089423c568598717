"""Estimators as published, kept for comparison: none of them follows the gradient of ``J = E[Σ_t γ^t r_t]``.

Two things set them off. A mean that contains one's own reward, and the division by a spread that does, depend on the
action they are to judge. And where step rewards are normalised first and summed afterwards, each future reward brings
its own baseline along: how many are subtracted depends on when the policy stops, so stopping is paid or punished for
nothing, and the sign of a turn's credit can turn round.

Spreads are sample standard deviations (ddof 1) plus 1e-6, where the papers leave it open; numbers that have nobody to
be compared with become 0. With ``norm="none"`` the mean is subtracted and nothing divided, as Dr. GRPO does (arXiv
2503.20783); the effect of stopping stays. None of them has c_t, and the gamma of those that know no discount is 1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

from trajgym.errors import ConfigError
from trajgym.rewards.functions import is_finite
from trajgym.trainers.advantages_base import Advantages, Rewards, States, check_choice, check_others, estimator
from trajgym.trainers.advantages_returns import returns

__all__ = ["gigpo", "grpo_process", "mt_grpo", "rebn"]

_EPSILON = 1e-6
_ROUNDING = 1e-12


@estimator("gigpo")
def gigpo(rewards: Rewards, *, gamma: float, states: States, omega: float = 1.0, norm: str = "std") -> Advantages:
    """Add the whole trajectory's credit and the credit among all visits of a state. Biased.

    ``A_{i,t} = A^E_i + ω·A^S_{i,t}`` with ``A^E = (R_i − mean_j R_j) / F`` over the undiscounted returns of the group,
    and ``A^S = (G_{i,t} − mean) / F`` over the discounted returns-to-go of all visits of the same state, one's own
    included. A state visited once gives ``A^S = 0``.

    Args:
        rewards: The group, ragged.
        gamma: Discount per turn of the returns-to-go, in [0, 1].
        states: The key of the state each turn began in, ragged as the rewards.
        omega: ω, weight of the step-level part, at least 0.
        norm: F: ``"std"``, the standard deviation; ``"none"``, 1. The paper has both.

    Raises:
        RewardError: For rewards that are not finite numbers, or a trajectory without turns.
        ConfigError: For fewer than two trajectories, states that do not fit, or an option out of range.

    Source: Feng et al. 2025, arXiv 2505.10978, section 4.
    """
    _check(rewards, norm, "gigpo")
    _check_weight("omega", omega)
    episode = _normalised([math.fsum(row) for row in rewards], norm)
    visits: defaultdict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for i, keys in enumerate(states):
        for t, key in enumerate(keys):
            visits[key].append((i, t))
    to_go = [returns(row, gamma) for row in rewards]
    advantages = [[a] * len(row) for a, row in zip(episode, rewards, strict=True)]
    for places in visits.values():
        for (i, t), a in zip(places, _normalised([to_go[i][t] for i, t in places], norm), strict=True):
            advantages[i][t] += omega * a
    return advantages


@estimator("grpo_process")
def grpo_process(rewards: Rewards, *, gamma: float, norm: str = "std") -> Advantages:
    """Normalise all step rewards of the group together, then sum those from each turn on. Biased.

    ``A_{i,t} = Σ_{k≥t} γ^{k−t} r̃_{i,k}`` with ``r̃ = (r − mean) / std`` over all rewards of all trajectories.

    Args:
        rewards: The group, ragged.
        gamma: Discount per turn, in [0, 1]; the paper has none, which is 1.
        norm: ``"std"``, or ``"none"`` to subtract the mean alone.

    Raises:
        RewardError: For rewards that are not finite numbers, or a trajectory without turns.
        ConfigError: For fewer than two trajectories, or an option out of range.

    Source: Shao et al. 2024, arXiv 2402.03300, section 4.1.3.
    """
    _check(rewards, norm, "grpo_process")
    flat = iter(_normalised([reward for row in rewards for reward in row], norm))
    return [returns([next(flat) for _ in row], gamma) for row in rewards]


@estimator("mt_grpo")
def mt_grpo(rewards: Rewards, *, gamma: float, turn_weight: float = 1.0, norm: str = "std") -> Advantages:
    """Normalise the rewards of each turn across the group, then sum those from each turn on. Biased.

    ``A_{i,t} = Σ_{k≥t} γ^{k−t} w_k r̂_{i,k}`` with ``r̂_{i,k} = (r_{i,k} − mean) / std`` over the trajectories that
    reached turn k, and ``w_k`` the weight of intermediate rewards, 1 for a trajectory's last. The paper has two turns:
    the first gets its own normalised reward and that of the outcome, the second that of the outcome alone. For more
    turns, and for trajectories of unequal length, this sum is the reading chosen here.

    Args:
        rewards: The group, ragged; a trajectory's last reward is its outcome.
        gamma: Discount per turn, in [0, 1]; the paper has none, which is 1.
        turn_weight: Weight of intermediate rewards, at least 0.
        norm: ``"std"``, or ``"none"`` to subtract the mean alone.

    Raises:
        RewardError: For rewards that are not finite numbers, or a trajectory without turns.
        ConfigError: For fewer than two trajectories, or an option out of range.

    Source: Zeng et al. 2025, arXiv 2505.11821, section 4.
    """
    _check(rewards, norm, "mt_grpo")
    _check_weight("turn_weight", turn_weight)
    normal = [[0.0] * len(row) for row in rewards]
    for t in range(max(map(len, rewards))):
        reached = [i for i, row in enumerate(rewards) if t < len(row)]
        for i, value in zip(reached, _normalised([rewards[i][t] for i in reached], norm), strict=True):
            normal[i][t] = value if t == len(rewards[i]) - 1 else turn_weight * value
    return [returns(row, gamma) for row in normal]


@estimator("rebn")
def rebn(rewards: Rewards, *, gamma: float, norm: str = "std") -> Advantages:
    """Normalise the returns-to-go of all turns together: ``A_{i,t} = (G_{i,t} − mean) / std``. Biased.

    One baseline for all turns is independent of none of them, and wrong for most: turns that come late have less left
    to earn.

    Args:
        rewards: The group, ragged; it stands for the paper's batch.
        gamma: Discount per turn, in [0, 1].
        norm: ``"std"``, or ``"none"`` to subtract the mean alone.

    Raises:
        RewardError: For rewards that are not finite numbers, or a trajectory without turns.
        ConfigError: For fewer than two trajectories, or an option out of range.

    Source: return batch normalisation, Liu et al. 2025, arXiv 2510.01051, section 3.
    """
    _check(rewards, norm, "rebn")
    to_go = [returns(row, gamma) for row in rewards]
    flat = iter(_normalised([value for row in to_go for value in row], norm))
    return [[next(flat) for _ in row] for row in to_go]


def _normalised(values: Sequence[float], norm: str) -> list[float]:
    """Subtract the mean, and divide by the sample standard deviation if asked to."""
    if len(values) < 2:
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    centred = [value - mean for value in values]
    if max(map(abs, centred)) <= _ROUNDING * max(map(abs, values)):
        return [0.0] * len(values)  # equal but for the last bits, which a tiny spread would blow up
    if norm == "none":
        return centred
    spread = math.sqrt(math.fsum(c * c for c in centred) / (len(values) - 1)) + _EPSILON
    return [c / spread for c in centred]


def _check(rewards: Rewards, norm: str, name: str) -> None:
    check_choice(f"norm of {name!r}", norm, ("std", "none"))
    check_others(rewards, "choose an estimator that compares nobody")


def _check_weight(what: str, value: float) -> None:
    if not (is_finite(value) and value >= 0.0):
        raise ConfigError(f"{what} must be a number of at least 0, got {value!r}.")
