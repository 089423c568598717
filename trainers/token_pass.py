"""Numbers for every sampled token of a batch, computed without a gradient, each rank taking its share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from trajgym.trainers.batch import MicroBatch, make_batch
from trajgym.trainers.ranks import Ranks
from trajgym.types import Trajectory

__all__ = ["PerToken", "per_token"]

PerToken: TypeAlias = list[list[list[float]]]
"""One number per trajectory, turn and sampled token."""


@torch.no_grad()
def per_token(
    trajectories: Sequence[Trajectory],
    compute: Callable[[MicroBatch], Tensor],
    *,
    ranks: Ranks,
    max_tokens: int,
    share: bool = False,
) -> PerToken:
    """Return what ``compute`` says of each sampled token.

    Args:
        trajectories: With token rows; the same on every rank.
        compute: Takes a micro-batch and returns one number per policy token, in its order. Shape: (N,).
        ranks: Who shares the work.
        max_tokens: Most tokens of a micro-batch, as for :func:`trajgym.trainers.batch.make_batch`.
        share: Whether to compute what rows have in common once.
    """
    nothing = [[0.0] * len(t.steps) for t in trajectories]
    micros = make_batch(trajectories, nothing, normalizer=1.0, pad_id=0, max_tokens=max_tokens, share=share).micro
    shares = ranks.together(lambda: [(m.places, compute(m).tolist()) for m in ranks.mine(micros)])
    out: PerToken = [[[] for _ in t.steps] for t in trajectories]
    for places, values in (part for share in shares for part in share):
        for (i, t), value in zip(places, values, strict=True):
            out[i][t].append(value)
    return out
