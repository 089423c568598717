"""The losses on preference pairs, as TRL's trainers compute them, for numbers on held-out pairs and for tests."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

__all__ = ["bradley_terry_loss", "dpo_loss"]


def bradley_terry_loss(chosen: Tensor, rejected: Tensor, margin: Tensor | None = None, center: float = 0.0) -> Tensor:
    """Return ``−E log σ(r_w − r_l − m) + c·E (r_w + r_l)²``: log 2 for equal scores, and less the clearer the order.

    Args:
        chosen: Scores r_w of the better answers. Shape: (N,).
        rejected: Scores r_l of the worse ones. Shape: (N,).
        margin: By how much they should differ, m. Shape: (N,).
        center: Weight c of the term that keeps scores near 0, which the first one leaves open.

    Source: Bradley & Terry 1952; as a loss, arXiv 2203.02155 eq. 1; m, arXiv 2307.09288 eq. 2; c, arXiv 2312.09244.

    >>> import torch
    >>> zero = torch.zeros(1)
    >>> round(bradley_terry_loss(zero, zero).item(), 4), bradley_terry_loss(zero + 2, zero).item() < 0.13
    (0.6931, True)
    """
    gap = chosen - rejected if margin is None else chosen - rejected - margin
    return -logsigmoid(gap).mean() + center * (chosen + rejected).square().mean()


def dpo_loss(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Return ``−E log σ(β·(Δ_w − Δ_l))``.

    Args:
        chosen: Δ_w = log π(y_w|x) − log π_ref(y_w|x), summed over the policy's own tokens (nats). Shape: (N,).
        rejected: Δ_l, likewise. Shape: (N,).
        beta: β.

    Source: Direct Preference Optimization, arXiv 2305.18290 eq. 7.
    """
    return -logsigmoid(beta * (chosen - rejected)).mean()
