"""Per-step advantages on the tokens of TRL's completions.

Notation: B completions in groups of G that follow one another, T token positions, ``r_{i,t}`` the reward of turn t of
completion i.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from trajgym.errors import UnknownNameError
from trajgym.trainers.advantages import Advantages, BoundEstimator
from trajgym.trainers.scaling import divided_by_spread, spread_of_returns

__all__ = ["StepsPaid", "credit_groups", "spread_over_tokens", "turn_of_each_token"]


def turn_of_each_token(mask: torch.Tensor) -> torch.Tensor:
    """Return which turn each token belongs to: turns are the runs of tokens that the policy sampled.

    Args:
        mask: 1 where the policy sampled the token, 0 for what tools answered and for padding. Shape: (B, T).

    Returns:
        The number of the turn, from 0, and −1 where the mask is 0. Shape: (B, T).

    >>> turn_of_each_token(torch.tensor([[1, 1, 0, 1, 0, 0]])).tolist()
    [[0, 0, -1, 1, -1, -1]]
    """
    mask = mask.long()
    begins = mask - torch.nn.functional.pad(mask, (1, 0))[:, :-1] > 0
    return torch.where(mask > 0, begins.long().cumsum(1) - 1, -1)


def spread_over_tokens(advantages: Advantages, turns: torch.Tensor) -> torch.Tensor:
    """Give each token of turn t of completion i the advantage ``A_{i,t}``, and all other tokens 0.

    Args:
        advantages: One list per completion. Turns beyond its end belong to no step of the episode and get 0.
        turns: From :func:`turn_of_each_token`. Shape: (B, T).

    Returns:
        Shape: (B, T), float32.

    >>> spread_over_tokens([[0.5]], torch.tensor([[0, -1, 1]])).tolist()
    [[0.5, 0.0, 0.0]]
    """
    most = max(int(turns.max()) + 1, *map(len, advantages), 1)
    # One more column of zeros, for the tokens that belong to no turn: −1 picks the last one.
    table = torch.zeros(len(advantages), most + 1, device=turns.device)
    for i, row in enumerate(advantages):
        table[i, : len(row)] = torch.tensor(row, dtype=table.dtype)
    return table.gather(1, turns % (most + 1))


@dataclass(frozen=True)
class StepsPaid:
    """What a completion was paid.

    Args:
        rewards: One for each step.
        states: A key of the state each step began in; empty unless the estimator asks for them.
    """

    rewards: Sequence[float]
    states: Sequence[Hashable] = ()


def credit_groups(
    paid: Sequence[StepsPaid | None], size: int, estimate: BoundEstimator, *, scale: str
) -> tuple[Advantages, int]:
    """Return the advantage of every turn of a batch.

    A completion without a reward leaves its group, baseline and spread included; a group in which fewer than two are
    left has nobody to compare with, and gets 0.

    Args:
        paid: What each completion was paid, ``None`` for one that cannot be scored; group by group.
        size: G, the number of completions in a group.
        estimate: The estimator.
        scale: TRL's ``scale_rewards``: the advantages are divided by the standard deviation (ddof 1, plus 1e-4) of the
            completions' discounted returns in the ``"group"`` or in the whole ``"batch"``, or by nothing (``"none"``).

    Returns:
        The advantages, an empty list for a completion without a reward, and the number of groups that got 0.

    Raises:
        UnknownNameError: For another scale.
        RewardError, ConfigError: Where the estimator refuses the rewards.
    """
    if scale not in ("group", "batch", "none"):
        raise UnknownNameError("scale_rewards", scale, ("group", "batch", "none"))
    gamma = estimate.options["gamma"]
    everybody = [one.rewards for one in paid if one is not None]
    batch = spread_of_returns(everybody, gamma) if scale == "batch" and len(everybody) > 1 else 0.0
    out: dict[int, list[float]] = {}
    dropped = 0
    for start in range(0, len(paid), size):
        group = {i: one for i, one in enumerate(paid[start : start + size], start) if one is not None}
        if len(group) < 2:
            dropped += 1
            continue
        states = [one.states for one in group.values()] if "states" in estimate.needs else None
        rewards = [one.rewards for one in group.values()]
        credit = estimate(rewards, states=states)
        if scale != "none":
            spread = batch if scale == "batch" else spread_of_returns(rewards, gamma)
            credit = divided_by_spread(credit, spread)
        out |= dict(zip(group, credit, strict=True))
    return [out.get(i, []) for i in range(len(paid))], dropped
