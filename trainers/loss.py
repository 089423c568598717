"""The policy's loss, as a pure function of tensors.

``L = −(1/Z)·Σ w·f(ρ, A) + (β/Z)·Σ v·KL`` over the tokens the policy sampled, where ρ = π/π_old at the chosen level,
w corrects for a sampler that is not the trained model, and v is 1 unless Z asks for the mean of each trajectory.
The ratio is over π_old and clipped, as PPO and GRPO define it; the reference policy appears in the KL alone.

Shapes: every tensor is (N,), one entry per policy token of the micro-batch; nothing else reaches the loss, so tokens
of prompts and observations have a gradient of exactly zero. The losses of micro-batches add up, since Z is computed
once for the whole optimiser step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trajgym.errors import ConfigError, TrainingError, UnknownNameError
from trajgym.trainers.kl import KL_FORMS, kl_terms
from trajgym.trainers.token_checks import check_finite, check_shapes

__all__ = ["KL_FORMS", "LEVELS", "OBJECTIVES", "LossParts", "policy_loss", "sampler_weights"]

LEVELS = ("token", "turn", "trajectory")
OBJECTIVES = ("clip", "cispo", "dual_clip")

_NO_SEQUENCE = (
    "A ratio of whole sequences without the stop-gradient form gives all tokens of a sequence their mean advantage, "
    'which undoes the credit of single turns; level "trajectory" has the same ratio and keeps the credit.'
)
_ADVICE = (
    "Either the weights are damaged (go back to the last checkpoint and lower learning_rate), or a token has "
    "probability 0 under a policy that is said to have sampled it."
)


@dataclass(frozen=True)
class LossParts:
    """What one micro-batch adds to the step's loss, and what is logged of it.

    Args:
        loss: Scalar to call ``backward`` on, already divided by Z.
        kl: Sum over tokens of the k3 estimate of KL(π‖π_ref), in nats; 0 without a reference.
        clipped_low: Number of tokens at which the lower bound of the ratio took the gradient away.
        clipped_high: The same for the upper bounds; for cispo, which keeps the gradient, where the cap held.
        ratio_min: Smallest ρ; 1 when there is no token.
        ratio_max: Largest ρ; 1 when there is no token.
    """

    loss: Tensor
    kl: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    ratio_min: Tensor
    ratio_max: Tensor

    @property
    def ratio_clipped(self) -> Tensor:
        """Number of tokens at which any bound was active."""
        return self.clipped_low + self.clipped_high


def policy_loss(
    logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    *,
    normalizer: float,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    level: str = "token",
    spans: Tensor | None = None,
    objective: str = "clip",
    cispo_cap: float = 5.0,
    dual_clip: float = 3.0,
    weights: Tensor | None = None,
    ref_logp: Tensor | None = None,
    kl_coef: float = 0.0,
    kl_form: str = "k3_ratio",
    kl_weights: Tensor | None = None,
) -> LossParts:
    """Return the loss of some tokens.

    Args:
        logp: log π of each sampled token, with gradient. Shape: (N,).
        old_logp: The same under the policy that the step began with, detached. Shape: (N,).
        advantages: Advantage of each token, detached. Shape: (N,).
        normalizer: Z, above 0, computed once per optimiser step over all micro-batches.
        clip_low: ε_lo, in [0, 1).
        clip_high: ε_hi, at least 0.
        level: What one ratio is taken over: ``"token"``, or the geometric mean ``s`` over the tokens of a ``"turn"`` or
            a ``"trajectory"``, in the form ``ρ = sg[s]·π/sg[π]``: all tokens of the span are clipped alike, each
            keeps its own advantage.
        spans: Number of the turn or trajectory each token belongs to, for these two levels. Shape: (N,).
        objective: ``f``. ``"clip"``, ``min(ρA, clip(ρ, 1−ε_lo, 1+ε_hi)·A)``; ``"dual_clip"``, the same, but not below
            ``c·A`` for A < 0; ``"cispo"``, ``sg[min(ρ, cap)]·A·log π``, in which every token keeps its gradient.
        cispo_cap: At least 1.
        dual_clip: c, above 1.
        weights: Sampler-to-trainer correction w, detached; 1 when left out. Shape: (N,).
        ref_logp: log π_ref, detached; needed when a KL is to be part of the loss. Shape: (N,).
        kl_coef: β, at least 0.
        kl_form: One of ``KL_FORMS``; see :mod:`trajgym.trainers.kl`. ``"k1_in_reward"`` adds nothing here. The ratio in
            ``"k3_ratio"`` is the token's at every level, since it corrects for the token's own distribution.
        kl_weights: v, the ``row_weights`` of the micro-batch, times w where there is one; 1 when left out. Shape: (N,).

    Raises:
        ConfigError: When an option is out of its range, naming it.
        UnknownNameError: For an unknown level, objective or form.
        TrainingError: When an input is not finite or not of shape (N,), or a ratio is too large for a number.

    Source: PPO, arXiv 1707.06347; GRPO, arXiv 2402.03300; separate clip bounds, DAPO, arXiv 2503.14476; geometric mean
    and its token form, GSPO, arXiv 2507.18071; CISPO, MiniMax-M1, arXiv 2506.13585; dual clip, arXiv 1912.09729.
    """
    _check_options(normalizer, clip_low, clip_high, objective, cispo_cap, dual_clip, kl_coef, kl_form)
    tensors = {"old_logp": old_logp, "advantages": advantages, "weights": weights, "ref_logp": ref_logp}
    check_shapes(logp=logp, **tensors, kl_weights=kl_weights, spans=spans)
    check_finite(_ADVICE, logp=logp, **tensors, kl_weights=kl_weights)

    token_ratio = (logp - old_logp).exp()
    ratio = token_ratio if level == "token" else _span_ratio(logp, old_logp, level, spans)
    check_finite("π has moved too far from π_old in one update; lower learning_rate.", ratio=ratio)

    low = (ratio < 1.0 - clip_low) & (advantages < 0.0)
    high = (ratio > 1.0 + clip_high) & (advantages > 0.0)
    if objective == "cispo":
        gain = ratio.detach().clamp(max=cispo_cap) * advantages * logp
        low, high = torch.zeros_like(low), (ratio > cispo_cap) & (advantages != 0.0)
    else:
        gain = torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)
        if objective == "dual_clip":
            bad = advantages < 0.0
            gain = torch.where(bad, torch.maximum(gain, dual_clip * advantages), gain)
            high = high | (bad & (ratio > dual_clip))
    total = -(gain if weights is None else gain * weights).sum()

    kl = logp.new_zeros(())
    if ref_logp is not None:
        kl = kl_terms(logp.detach(), ref_logp, "k3").sum()
    if kl_coef > 0.0 and kl_form != "k1_in_reward":
        if ref_logp is None:
            raise ConfigError(f"kl_coef is {kl_coef}, but there is no ref_logp to measure a KL against; pass it.")
        penalty = kl_terms(logp, ref_logp, kl_form, ratio=token_ratio)
        check_finite("π has moved too far from π_ref; raise kl_coef or lower learning_rate.", kl=penalty)
        total = total + kl_coef * (penalty if kl_weights is None else penalty * kl_weights).sum()

    seen = ratio.detach() if ratio.numel() else ratio.new_ones(1)
    return LossParts(total / normalizer, kl, low.sum(), high.sum(), seen.min(), seen.max())


def sampler_weights(old_logp: Tensor, sampler_logp: Tensor, cap: float = 2.0) -> Tensor:
    """Return the correction for a sampler whose probabilities are not the trainer's: ``w = min(π_old/π_sampler, C)``.

    Args:
        old_logp: log π_old as the trainer computes it. Shape: (N,).
        sampler_logp: What the sampler reported for the same tokens. Shape: (N,).
        cap: C, at least 1: a smaller one would weigh down tokens on which the two agree.

    Returns:
        Detached. Shape: (N,).

    Raises:
        ConfigError: When C is below 1 or not finite.
        TrainingError: When an input is not finite or the shapes differ.

    Source: truncated importance sampling, E. Ionides 2008; for a separate sampler, F. Yao et al. 2025.
    """
    if not 1.0 <= cap < math.inf:
        raise ConfigError(f"cap must be a finite number of at least 1, got {cap!r}.")
    check_shapes(old_logp=old_logp, sampler_logp=sampler_logp)
    check_finite(_ADVICE, old_logp=old_logp, sampler_logp=sampler_logp)
    return (old_logp - sampler_logp).detach().exp().clamp(max=cap)


def _span_ratio(logp: Tensor, old_logp: Tensor, level: str, spans: Tensor | None) -> Tensor:
    """Return the geometric mean of π/π_old over each token's span, with the gradient of the token itself."""
    if level not in LEVELS:
        raise UnknownNameError("level", level, LEVELS, _NO_SEQUENCE)
    if spans is None:
        raise ConfigError(f"level {level!r} needs spans: turns or trajectories of the micro-batch.")
    if spans.is_floating_point() or bool((spans < 0).any()):
        raise TrainingError("spans must hold integers from 0: the number of each token's turn or trajectory.")
    gaps = (logp - old_logp).detach()
    size = int(spans.max()) + 1 if spans.numel() else 0
    sums, counts = gaps.new_zeros(2, size)
    sums.index_add_(0, spans, gaps)
    counts.index_add_(0, spans, torch.ones_like(gaps))
    means = sums / counts.clamp(min=1.0)
    return torch.exp(means[spans] + (logp - logp.detach()))


def _check_options(
    normalizer: float,
    clip_low: float,
    clip_high: float,
    objective: str,
    cispo_cap: float,
    dual_clip: float,
    kl_coef: float,
    kl_form: str,
) -> None:
    ranges = {
        "normalizer": (normalizer, 0.0 < normalizer < math.inf, "a finite number above 0"),
        "clip_low": (clip_low, 0.0 <= clip_low < 1.0, "in [0, 1)"),
        "clip_high": (clip_high, 0.0 <= clip_high < math.inf, "a finite number of at least 0"),
        "cispo_cap": (
            cispo_cap,
            1.0 <= cispo_cap < math.inf,
            "a finite number of at least 1, or it would hold tokens down at which the policy has not moved (ρ = 1)",
        ),
        "dual_clip": (
            dual_clip,
            1.0 < dual_clip < math.inf,
            "a finite number above 1, or it would stop bad tokens at which the policy has not moved (ρ = 1)",
        ),
        "kl_coef": (kl_coef, 0.0 <= kl_coef < math.inf, "a finite number of at least 0"),
    }
    for name, (value, allowed, what) in ranges.items():
        if not allowed:
            raise ConfigError(f"{name} must be {what}; got {value!r}.")
    if objective not in OBJECTIVES:
        raise UnknownNameError("objective", objective, OBJECTIVES)
    if kl_form not in KL_FORMS:
        kl_terms(torch.zeros(0), torch.zeros(0), kl_form)  # says why a form is refused
