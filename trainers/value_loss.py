"""What PPO needs of a value head: the loss of its values, and advantages on the two levels of turns and tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trajgym.errors import ConfigError, RewardError, UnknownNameError
from trajgym.trainers.token_checks import check_finite, check_shapes

__all__ = ["bilevel_gae", "value_loss"]

_WEIGHTS = ("exact", "dropped")


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    *,
    normalizer: float,
    clip: float | None = 0.2,
    weights: Tensor | None = None,
) -> Tensor:
    """Return ``(1/2Z)·Σ w·max((V − R)², (V_old + clip(V − V_old, −ε, ε) − R)²)``.

    The maximum takes the gradient away where V has moved more than ε *towards* R; a value that moved away from R is
    still pulled back.

    Args:
        values: V with gradient, one per turn or token. Shape: (M,).
        old_values: V before the update, detached. Shape: (M,).
        returns: What V is to predict, detached. Shape: (M,).
        normalizer: Z, above 0, computed once per optimiser step over all micro-batches.
        clip: ε in units of reward, above 0; ``None`` for the plain squared error.
        weights: w, detached; 1 when left out. Shape: (M,).

    Returns:
        A scalar.

    Raises:
        ConfigError: When ``normalizer`` or ``clip`` is out of its range.
        TrainingError: When an input is not finite or not of shape (M,).

    Source: J. Schulman et al., arXiv 1707.06347, in the form of their implementation.
    """
    if not 0.0 < normalizer < math.inf:
        raise ConfigError(f"normalizer must be a finite number above 0; got {normalizer!r}.")
    if clip is not None and not 0.0 < clip < math.inf:
        raise ConfigError(f"The clip of the value loss must be a finite number above 0, or None; got {clip!r}.")
    inputs = {"values": values, "old_values": old_values, "returns": returns, "weights": weights}
    check_shapes(**inputs)
    check_finite("Lower the value head's learning rate, or look at the rewards.", **inputs)
    error = (values - returns).square()
    if clip is not None:
        held = old_values + (values - old_values).clamp(-clip, clip)
        error = torch.maximum(error, (held - returns).square())
    if weights is not None:
        error = error * weights
    return 0.5 * error.sum() / normalizer


def bilevel_gae(
    token_counts: Sequence[int],
    rewards: Sequence[float],
    turn_values: Sequence[float],
    token_values: Sequence[float],
    gamma: float,
    lam_turn: float,
    lam_token: float,
    *,
    discount_weight: str = "exact",
) -> list[list[float]]:
    """Return an advantage for each token of one trajectory: GAE across turns first, then inside each turn.

    Across turns, ``δ_t = r_t + γ·V_{t+1} − V_t`` and ``A_t = δ_t + γ·λ_turn·A_{t+1}``. The turn's return ``A_t + V_t``
    is then the reward that its last token n is paid, and with no discount between tokens::

        A_{t,n} = A_t + V_t − v_{t,n}
        A_{t,j} = v_{t,j+1} − v_{t,j} + λ_token·A_{t,j+1}     for j < n

    So the last token receives the turn's own advantage, corrected where the value in front of that token differs from
    the one of the turn; where a turn's value is read at its last token, as the paper does, nothing is left to correct.
    At ``λ_turn = λ_token = 1`` every token has ``G_t − v_{t,j}``: the return from its turn on, less a baseline that
    knows nothing of the token itself, which is unbiased whatever the values are. With λ < 1 there is a bias as large as
    the errors of the values.

    Args:
        token_counts: Number of tokens the policy sampled in each turn; a turn without tokens is passed through.
            T entries.
        rewards: One per turn. T entries.
        turn_values: V_t, the value of the state in which each turn began, and of the last one: 0 where the episode
            terminated. T + 1 entries.
        token_values: v, the value in front of each sampled token, turn after turn. ``sum(token_counts)`` entries.
        gamma: Discount per turn, in [0, 1].
        lam_turn: λ between turns, in [0, 1].
        lam_token: λ between the tokens of a turn, in [0, 1].
        discount_weight: ``"exact"`` multiplies by ``γ^t``, which the gradient of J needs; ``"dropped"`` does not, and
            then advantage plus value is what a value head is to predict in front of the token.

    Returns:
        One list per turn with one number per token, as ``make_batch`` takes it.

    Raises:
        ConfigError: When γ or a λ is out of its range.
        UnknownNameError: For another ``discount_weight``.
        RewardError: When a number is not finite or the lengths do not fit.

    Source: after VAGEN, arXiv 2510.16907; GAE, arXiv 1506.02438.

    >>> bilevel_gae([2, 1], [0.0, 1.0], [0.5, 0.75, 0.0], [0.5, 0.25, 0.75], 1.0, 1.0, 1.0)
    [[0.5, 0.75], [0.25]]
    """
    for name, share in (("gamma", gamma), ("lam_turn", lam_turn), ("lam_token", lam_token)):
        if not 0.0 <= share <= 1.0:
            raise ConfigError(f"{name} must lie in [0, 1], got {share!r}.")
    if discount_weight not in _WEIGHTS:
        raise UnknownNameError("discount_weight", discount_weight, _WEIGHTS)
    if min(token_counts, default=0) < 0:
        raise RewardError(f"token_counts must be at least 0, got {list(token_counts)}.")
    _check_numbers("token_counts", token_counts, len(rewards))
    _check_numbers("rewards", rewards, len(rewards))
    _check_numbers("turn_values", turn_values, len(rewards) + 1)
    _check_numbers("token_values", token_values, sum(token_counts))

    advantages: list[list[float]] = []
    later, end = 0.0, len(token_values)
    for t in reversed(range(len(rewards))):
        later = rewards[t] + gamma * turn_values[t + 1] - turn_values[t] + gamma * lam_turn * later
        weight = gamma**t if discount_weight == "exact" else 1.0
        turn: list[float] = []
        following, advantage = later + turn_values[t], 0.0
        for value in reversed(token_values[end - token_counts[t] : end]):
            advantage = following - value + lam_token * advantage
            following = value
            turn.append(weight * advantage)
        end -= token_counts[t]
        advantages.append(turn[::-1])
    return advantages[::-1]


def _check_numbers(name: str, numbers: Sequence[float], count: int) -> None:
    if len(numbers) != count:
        raise RewardError(f"{name} has {len(numbers)} entries, but {count} are needed.")
    for place, number in enumerate(numbers):
        if not math.isfinite(number):
            raise RewardError(f"{name}[{place}] is {number!r}; it must be a finite number.")
