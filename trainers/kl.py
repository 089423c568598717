"""The KL against the reference policy: in the loss, or in the reward.

Throughout, ``d = log π_ref − log π`` of a token that was sampled from π_old, and KL(π‖π_ref) is that of one token's
distribution, at the prefixes that were sampled. The forms in the loss push each token towards the reference. A token
also decides what the policy writes next, and how far *that* is from the reference; this only ``k1_in_reward`` counts:
its objective is the return less β times the KL of whole trajectories (at γ = 1).

=================  ============================  ==========================================================
form               what the loss adds per token  its gradient, in expectation
=================  ============================  ==========================================================
``k3_ratio``       ``ρ·(e^d − d − 1)``           ∇KL(π‖π_ref), whatever π_old is
``k2``             ``d²/2``                      ∇KL(π‖π_ref) as long as π = π_old
``k3``             ``e^d − d − 1``               that of KL(π_ref‖π) as long as π = π_old; kept for comparison
``k1_in_reward``   nothing                       the reward of each turn is lowered instead
=================  ============================  ==========================================================

``k1``, the plain ``−d``, is an unbiased *value*, but as a loss it does nothing: ``E_{y∼π}[∇ log π(y)] = 0``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trajgym.errors import ConfigError, RewardError, UnknownNameError

__all__ = ["KL_FORMS", "kl_in_reward", "kl_terms"]

KL_FORMS = ("k3_ratio", "k3", "k2", "k1_in_reward")

_NO_LOSS = (
    "As a loss, k1 = log π − log π_ref has an expected gradient of zero, so it is refused; k1_in_reward takes it from "
    "the rewards of the turns, where it acts."
)


def kl_terms(logp: Tensor, ref_logp: Tensor, form: str, *, ratio: Tensor | None = None) -> Tensor:
    """Return the penalty that the loss adds at each token, in nats.

    Args:
        logp: log π with gradient. Shape: (N,).
        ref_logp: log π_ref, detached. Shape: (N,).
        form: One of ``KL_FORMS``; see the top of this file.
        ratio: π/π_old of each token with gradient, for ``"k3_ratio"``; on-policy when left out. Shape: (N,).

    Returns:
        Shape: (N,).

    Raises:
        UnknownNameError: For any other form; ``"k1"`` among them, and why.

    Source: J. Schulman, "Approximating KL divergence", 2020; the factor ρ, DeepSeek-V3.2, arXiv 2512.02556.
    """
    difference = ref_logp - logp
    if form == "k2":
        return 0.5 * difference.square()
    if form == "k1_in_reward":
        return torch.zeros_like(logp)
    if form not in KL_FORMS:
        raise UnknownNameError("kl_form", form, KL_FORMS, _NO_LOSS if form == "k1" else "")
    k3 = torch.expm1(difference) - difference
    if form == "k3":
        return k3
    return k3 * (ratio if ratio is not None else (logp - logp.detach()).exp())


def kl_in_reward(rewards: Sequence[float], kl: Sequence[float], kl_coef: float) -> list[float]:
    """Take the KL from one trajectory's rewards: ``r'_t = r_t − β·Σ_{y∈Y_t} (log π_old − log π_ref)``.

    Args:
        rewards: One per turn.
        kl: The sum over each turn's sampled tokens, in nats.
        kl_coef: β, at least 0.

    Returns:
        One reward per turn.

    Raises:
        ConfigError: When β is negative or not finite.
        RewardError: When a reward or a sum is not finite, or there are not as many sums as rewards.

    Source: N. Stiennon et al., arXiv 2009.01325, with the sum cut at the ends of turns.

    >>> kl_in_reward([0.0, 1.0], [0.5, -0.25], 0.1)
    [-0.05, 1.025]
    """
    if not 0.0 <= kl_coef < math.inf:
        raise ConfigError(f"kl_coef must be a finite number of at least 0, got {kl_coef!r}.")
    if len(kl) != len(rewards):
        raise RewardError(f"There are {len(rewards)} rewards, but the KL of {len(kl)} turns.")
    for t, (reward, gap) in enumerate(zip(rewards, kl, strict=True)):
        if not (math.isfinite(reward) and math.isfinite(gap)):
            raise RewardError(f"Turn {t} has the reward {reward!r} and the KL {gap!r}; both must be finite numbers.")
    return [reward - kl_coef * gap for reward, gap in zip(rewards, kl, strict=True)]
