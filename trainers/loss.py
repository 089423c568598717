"""The clipped objective and the KL penalty, as pure functions of tensors.

``L = −(1/Z)·Σ w·min(ρA, clip(ρ, 1−ε_lo, 1+ε_hi)·A) + β·KL`` over the tokens the policy sampled, with
``ρ = exp(log π − log π_old)``. The ratio is over π_old and clipped, as PPO and GRPO define it; the reference
policy appears in the KL alone.

Shapes: every tensor is (N,), one entry per policy token of the batch; nothing else reaches the loss, so tokens of
prompts and observations have a gradient of exactly zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trajgym.errors import UnknownNameError

__all__ = ["KL_FORMS", "LossParts", "kl_terms", "policy_loss"]

KL_FORMS = ("k3_ratio", "k3", "k2")


@dataclass(frozen=True)
class LossParts:
    """What one micro-batch adds to the step's loss, and what is logged of it.

    Args:
        loss: Scalar to call ``backward`` on, already divided by Z.
        kl: Sum over tokens of the k3 estimate of KL(π‖π_ref), in nats.
        ratio_clipped: Number of tokens at which the clip was active.
    """

    loss: Tensor
    kl: Tensor
    ratio_clipped: Tensor


def policy_loss(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    *,
    normalizer: float,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    weights: Tensor | None = None,
    ref_logp: Tensor | None = None,
    kl_coef: float = 0.0,
    kl_form: str = "k3_ratio",
) -> LossParts:
    """Return the loss of some tokens.

    Args:
        logp: log π of each sampled token, with gradient. Shape: (N,).
        old_logp: The same under the policy that the step began with, detached. Shape: (N,).
        advantages: Advantage of the turn each token belongs to, detached. Shape: (N,).
        normalizer: Z, computed once per optimiser step over all micro-batches.
        clip_low: ε_lo, in [0, 1).
        clip_high: ε_hi, at least 0.
        weights: Sampler-to-trainer correction w, detached; 1 when left out. Shape: (N,).
        ref_logp: log π_ref, detached; needed when ``kl_coef`` > 0. Shape: (N,).
        kl_coef: β.
        kl_form: See :func:`kl_terms`.

    Source: PPO, arXiv 1707.06347; GRPO, arXiv 2402.03300; separate clip bounds, DAPO, arXiv 2503.14476.
    """
    log_ratio = logp - old_logp
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    gain = torch.minimum(ratio * advantages, clipped * advantages)
    active = (clipped * advantages < ratio * advantages).sum()
    if weights is not None:
        gain = gain * weights
    total = -gain.sum()
    kl = logp.new_zeros(())
    if ref_logp is not None:
        kl = kl_terms(logp, ref_logp, "k3").detach().sum()
        if kl_coef > 0.0:
            penalty = kl_terms(logp, ref_logp, kl_form, ratio=ratio)
            total = total + kl_coef * penalty.sum()
    return LossParts(total / normalizer, kl, active)


def kl_terms(logp: Tensor, ref_logp: Tensor, form: str, *, ratio: Tensor | None = None) -> Tensor:
    """Return an estimate of KL(π‖π_ref) at each token.

    Args:
        logp: log π with gradient. Shape: (N,).
        ref_logp: log π_ref, detached. Shape: (N,).
        form: With ``d = log π_ref − log π``: ``"k3"``, ``e^d − d − 1``, unbiased as a value; ``"k3_ratio"``, the
            same times ρ, whose on-policy *gradient* is that of the KL; ``"k2"``, ``d²/2``, whose gradient also is.
            The plain difference is refused as a loss: its expected gradient is zero.
        ratio: ρ, for ``"k3_ratio"``.

    Returns:
        Shape: (N,).

    Source: J. Schulman, "Approximating KL divergence", 2020.
    """
    difference = ref_logp - logp
    if form == "k2":
        return 0.5 * difference.square()
    k3 = torch.expm1(difference) - difference
    if form == "k3":
        return k3
    if form == "k3_ratio":
        return k3 * (ratio if ratio is not None else (logp - logp.detach()).exp())
    raise UnknownNameError("kl_form", form, KL_FORMS)
