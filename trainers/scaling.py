"""Scales: divide the advantages of a batch by a spread, so that the learning rate need not know the rewards' unit.

A spread that is taken from the batch itself depends on the actions it scales, which bends the expected gradient, in
small groups by a lot; one that is taken from earlier batches only (:class:`EmaStd`) stretches it and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from trajgym.errors import CheckpointError, ConfigError, RewardError, UnknownNameError
from trajgym.rewards.functions import is_finite
from trajgym.trainers.advantages_base import Advantages, Rewards

__all__ = ["SCALES", "EmaStd", "divided_by_spread", "scale", "spread_of_returns"]

SCALES = ("none", "group_std", "batch_std")

_SPREAD = 1e-4  # what TRL adds to a standard deviation
_ROUNDING = 1e-12  # of the largest return


def scale(
    groups: Sequence[Advantages], how: str, *, groups_rewards: Sequence[Rewards] | None = None, gamma: float = 1.0
) -> list[Advantages]:
    """Divide advantages by a spread of their own batch.

    Args:
        groups: The advantages of every group of the batch.
        how: ``"none"``; ``"group_std"``, by the :func:`spread_of_returns` of each group, plus 1e-4, as GRPO does;
            ``"batch_std"``, by the root mean square of all turns' advantages (plus 1e-8).
        groups_rewards: The rewards behind them; needed by ``"group_std"``.
        gamma: Discount per turn of the returns.

    Raises:
        UnknownNameError: For another ``how``.
        ConfigError: For ``"group_std"`` without rewards, or with a group of one.
        RewardError: For advantages that are not finite.

    Source: GRPO, arXiv 2402.03300, for ``"group_std"``.
    """
    if how not in SCALES:
        hint = "ema_std keeps a state: use trajgym.trainers.scaling.EmaStd." if how == "ema_std" else ""
        raise UnknownNameError("advantage scale", how, SCALES, hint)
    if how == "group_std":
        if groups_rewards is None or len(groups_rewards) != len(groups):
            raise ConfigError('Scale "group_std" needs the rewards of each group; pass groups_rewards.')
        spreads = [spread_of_returns(rewards, gamma) for rewards in groups_rewards]
        return [divided_by_spread(group, spread) for group, spread in zip(groups, spreads, strict=True)]
    divisor = 1.0 if how == "none" else math.sqrt(_mean_square(groups)) + 1e-8
    return [_divided(group, divisor) for group in groups]


class EmaStd:
    """Divide by a spread that earlier batches have shown: their root mean square, averaged with a decay.

    The divisor is fixed before a batch is drawn, so in expectation the gradient keeps its direction. The first batch
    has nothing before it and is left as it is. A batch in which every advantage is 0 says nothing of the size that a
    signal has, and is passed over.

    Args:
        decay: What stays of the average with each batch, in [0, 1); with 0.9 about ten batches count.

    Raises:
        ConfigError: For another decay.

    >>> spread = EmaStd()
    >>> spread([[[2.0], [-2.0]]]), spread([[[1.0], [-1.0]]])
    ([[[2.0], [-2.0]]], [[[0.5], [-0.5]]])
    """

    def __init__(self, decay: float = 0.9) -> None:
        if not (is_finite(decay) and 0.0 <= decay < 1.0):
            raise ConfigError(f"decay must lie in [0, 1), got {decay!r}.")
        self.decay = decay
        self._sum = 0.0  # of mean squares, each times its weight
        self._weight = 0.0  # of all of them, so that the zero it starts from does not count

    @property
    def spread(self) -> float:
        """What the next batch is divided by; 1 before the first."""
        return math.sqrt(self._sum / self._weight) if self._weight else 1.0

    def __call__(self, groups: Sequence[Advantages]) -> list[Advantages]:
        """Return a batch divided by the spread of the earlier ones, then count it among them.

        Raises:
            RewardError: For advantages that are not finite; the state is as before.
        """
        square = _mean_square(groups)
        out = [_divided(group, self.spread) for group in groups]
        if square > 0.0:
            self._sum = self.decay * self._sum + (1.0 - self.decay) * square
            self._weight = self.decay * self._weight + (1.0 - self.decay)
        return out

    def state_dict(self) -> dict[str, float]:
        """Return what a resumed run needs in order to go on with the same numbers."""
        return {"sum": self._sum, "weight": self._weight}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from a saved state.

        Raises:
            CheckpointError: When it is not one of these.
        """
        total, weight = state.get("sum"), state.get("weight")
        if total is None or weight is None or not (is_finite(total) and is_finite(weight) and min(total, weight) >= 0):
            raise CheckpointError(
                f"The state of ema_std must be two numbers of at least 0, sum and weight, got {state!r}."
            )
        self._sum, self._weight = float(total), float(weight)


def _divided(group: Advantages, divisor: float) -> Advantages:
    return [[a / divisor for a in row] for row in group]


def _mean_square(groups: Sequence[Advantages]) -> float:
    values = [a for group in groups for row in group for a in row]
    square = math.fsum(a * a for a in values) / len(values) if values else 0.0
    if not math.isfinite(square):
        raise RewardError("Advantages must be finite numbers to be scaled; the rewards may be too large.")
    return square


def divided_by_spread(group: Advantages, spread: float) -> Advantages:
    """Return advantages divided by a spread and 1e-4, as GRPO does; 0 where there is no spread.

    Where all returns are equal GRPO has no advantages. An estimator that credits turns may have some, and a divisor of
    1e-4 would make them ten thousand times as large as those of other groups.
    """
    return [[a / (spread + _SPREAD) if spread else 0.0 for a in row] for row in group]


def spread_of_returns(rewards: Rewards, gamma: float = 1.0) -> float:
    """Return the sample standard deviation of a group's discounted returns, 0 where rounding alone sets them apart.

    Args:
        rewards: Of at least two trajectories.
        gamma: Discount per turn, that of the advantages: returns that differ by it alone would have no spread without.

    Raises:
        ConfigError: For fewer trajectories.
        RewardError: When they are too large.
    """
    if len(rewards) < 2:
        raise ConfigError(f'Scale "group_std" needs groups of at least 2 trajectories, got {len(rewards)}.')
    totals = [math.fsum(gamma**t * reward for t, reward in enumerate(row)) for row in rewards]
    mean = math.fsum(totals) / len(totals)
    if max(abs(x - mean) for x in totals) <= _ROUNDING * max(map(abs, totals)):
        return 0.0
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in totals) / (len(totals) - 1))
    if not math.isfinite(spread):
        raise RewardError("Rewards must be finite numbers to be scaled by; they may be too large.")
    return spread
