"""Trajectories and their advantages as tensors.

Rows are sorted by length and cut into micro-batches of a bounded number of padded tokens; the sum over
micro-batches does not depend on how they are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trajgym.errors import ConfigError
from trajgym.types import TokenStream, Trajectory

__all__ = ["Batch", "MicroBatch", "make_batch", "normalizer_value"]


@dataclass(frozen=True)
class MicroBatch:
    """Some rows, padded on the right.

    Shapes: ``ids`` (B, L); ``policy`` (B, L − 1), true at position p where token p + 1 was sampled by the policy;
    ``advantages`` and ``sampler_logp`` (N,), one entry per true position, row by row.
    """

    ids: Tensor
    policy: Tensor
    advantages: Tensor
    sampler_logp: Tensor

    def to(self, device: torch.device) -> MicroBatch:
        """Return a copy on ``device``."""
        return MicroBatch(
            self.ids.to(device), self.policy.to(device), self.advantages.to(device), self.sampler_logp.to(device)
        )


@dataclass(frozen=True)
class Batch:
    """Everything one optimiser step needs.

    Args:
        micro: The micro-batches.
        normalizer: Z of the loss.
        policy_tokens: Sampled tokens in the batch.
        padded_tokens: Tokens computed per forward pass, padding included.
    """

    micro: tuple[MicroBatch, ...]
    normalizer: float
    policy_tokens: int
    padded_tokens: int


def make_batch(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[Sequence[float]],
    *,
    normalizer: float,
    pad_id: int,
    max_tokens: int,
    row_weights: Sequence[float] | None = None,
) -> Batch:
    """Lay out trajectories for the loss.

    Args:
        trajectories: With token rows.
        advantages: One per turn of each trajectory.
        normalizer: Z, from :func:`normalizer_value`.
        pad_id: Token id to pad with; never attended to by a real token.
        max_tokens: Most padded tokens of a micro-batch; one row may exceed it.
        row_weights: Factor on each trajectory's advantages, for ``"sequence"`` normalisation.

    Raises:
        ConfigError: When a trajectory has no token rows (its policy has no tokens to train).
    """
    rows: list[tuple[TokenStream, list[float]]] = []
    for i, (trajectory, turns) in enumerate(zip(trajectories, advantages, strict=True)):
        if not trajectory.rows:
            raise ConfigError("A trajectory without token rows cannot be trained on; sample it with an LLM policy.")
        factor = 1.0 if row_weights is None else row_weights[i]
        rows += [(row, [factor * a for a in turns]) for row in trajectory.rows if any(row.mask)]
    rows.sort(key=lambda item: len(item[0].ids))
    micro, start = [], 0
    for end in range(1, len(rows) + 1):
        longest = len(rows[end][0].ids) if end < len(rows) else 0
        if end == len(rows) or (end + 1 - start) * longest > max_tokens:
            micro.append(_pad(rows[start:end], pad_id))
            start = end
    return Batch(
        tuple(micro),
        normalizer,
        policy_tokens=sum(sum(row.mask) for row, _ in rows),
        padded_tokens=sum(m.ids.numel() for m in micro),
    )


def normalizer_value(kind: str, trajectories: Sequence[Trajectory], *, constant: int) -> tuple[float, list[float]]:
    """Return Z and the weight of each trajectory.

    Args:
        kind: ``"constant"``, number of trajectories × ``constant``, which no action of the policy can change;
            ``"token"`` and ``"turn"``, number of sampled tokens or turns; ``"sequence"``, the mean over each
            trajectory's tokens, then over trajectories (the original GRPO).
        trajectories: All valid ones of the optimiser step, those without a signal included.
        constant: Tokens that a trajectory counts as.

    Source: constant, Dr. GRPO, arXiv 2503.20783; token, DAPO, arXiv 2503.14476; sequence, GRPO, arXiv 2402.03300.
    """
    tokens = [sum(sum(row.mask) for row in t.rows) for t in trajectories]
    ones = [1.0] * len(trajectories)
    if kind == "constant":
        return float(max(1, len(trajectories) * constant)), ones
    if kind == "token":
        return float(max(1, sum(tokens))), ones
    if kind == "turn":
        return float(max(1, sum(len(t.steps) for t in trajectories))), ones
    if kind == "sequence":
        return float(max(1, len(trajectories))), [1.0 / max(1, n) for n in tokens]
    raise ConfigError(f"normalizer must be constant, token, turn or sequence, got {kind!r}.")


def _pad(rows: Sequence[tuple[TokenStream, list[float]]], pad_id: int) -> MicroBatch:
    length = max(len(row.ids) for row, _ in rows)
    ids = torch.full((len(rows), length), pad_id, dtype=torch.long)
    policy = torch.zeros((len(rows), length - 1), dtype=torch.bool)
    advantages: list[float] = []
    logps: list[float] = []
    for i, (row, turns) in enumerate(rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        mask = torch.tensor(row.mask, dtype=torch.bool)
        policy[i, : len(row.ids) - 1] = mask[1:]
        for position in mask[1:].nonzero().flatten().tolist():
            advantages.append(turns[row.turns[position + 1]])
            logps.append(row.logprobs[position + 1])
    return MicroBatch(ids, policy, torch.tensor(advantages), torch.tensor(logps))
