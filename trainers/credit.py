"""From groups to advantages: what a turn is paid, who is to be credited, on what scale.

A turn is paid the environment's reward; penalties that need tokens or log-probabilities, which an environment does
not see, are taken from it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trajgym.errors import ConfigError, RewardError
from trajgym.trainers.advantages import Advantages, Rewards, bind
from trajgym.trainers.advantages_states import state_keys
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.kl import kl_in_reward
from trajgym.trainers.metrics import no_signal
from trajgym.trainers.overlong import overlong_penalty
from trajgym.trainers.scaling import EmaStd, scale
from trajgym.types import Group, Trajectory

__all__ = ["Credit", "turn_rewards", "turn_tokens"]

PerTurn = Sequence[Sequence[Sequence[float]]]
"""One number per group, trajectory and turn."""


class Credit:
    """Gives every turn of a batch its advantage.

    Args:
        config: Chooses estimator, penalties and scale.

    Attributes:
        least: Members that a group must have: 2 where they are compared with one another.

    Raises:
        ConfigError, UnknownNameError: For an estimator or an option of it that does not exist, or that cannot do with
            groups of one where there are no others.
    """

    def __init__(self, config: GRPOConfig) -> None:
        self._config = config
        self.kl_coef = config.kl_coef
        self._estimate = bind(
            config.estimator,
            gamma=config.gamma,
            baseline=config.baseline,
            discount_weight=config.discount_weight,
            **config.estimator_options,
        )
        try:
            self._of_one()
            self.least = 2 if config.advantage_scale == "group_std" else 1
        except (ConfigError, RewardError):
            if config.num_generations == 1:
                raise
            self.least = 2
        self._spread = EmaStd() if config.advantage_scale == "ema_std" else None

    @property
    def needs(self) -> frozenset[str]:
        """What the estimator asks for besides rewards: ``"states"``, ``"values"``."""
        return frozenset(self._estimate.needs)

    @property
    def rolls_out(self) -> bool:
        """Whether states are to be valued by fresh rollouts; gae has the group for that, or PPO's value model."""
        return "values" in self.needs and self._config.estimator != "gae"

    def __call__(
        self, groups: Sequence[Group], *, values: PerTurn | None = None, kl: PerTurn | None = None
    ) -> list[Advantages]:
        """Return the advantages of every group, one per turn of each trajectory.

        Args:
            groups: The batch.
            values: V(s_0) … V(s_T) of each trajectory, T + 1 numbers, where the estimator needs them.
            kl: ``Σ_y (log π − log π_ref)`` of each turn, in nats, where the KL is part of the reward.
        """
        rewards = self.rewards(groups, kl)
        advantages = [
            self._of_group(group, rewards[g], None if values is None else values[g]) for g, group in enumerate(groups)
        ]
        return self.rescale(advantages, rewards)

    def rewards(self, groups: Sequence[Group], kl: PerTurn | None = None) -> list[list[list[float]]]:
        """Return what every turn is paid: see :func:`turn_rewards`, and less the KL where it is given."""
        return [
            [
                kl_in_reward(turn_rewards(t, self._config), kl[g][i], self.kl_coef)
                if kl is not None
                else turn_rewards(t, self._config)
                for i, t in enumerate(group.trajectories)
            ]
            for g, group in enumerate(groups)
        ]

    def rescale(self, advantages: Sequence[Advantages], rewards: Sequence[Rewards]) -> list[Advantages]:
        """Divide by the spread that the options name."""
        if self._spread is not None:
            return self._spread(advantages)
        return scale(advantages, self._config.advantage_scale, groups_rewards=rewards, gamma=self._config.gamma)

    def has_signal(self, group: Group) -> bool:
        """Whether a group's rewards credit any turn with anything, whatever the scale."""
        return not no_signal(self._of_group(group, *self.rewards([group])))

    def _of_one(self) -> None:
        """Raise unless the estimator can credit a trajectory by itself, with what this run gives it."""
        valued = self.rolls_out or self._config.algorithm == "ppo"
        self._estimate([[0.0]], states=[["start"]], values=[[0.0, 0.0]] if valued else None)

    def _of_group(self, group: Group, rewards: Rewards, values: Sequence[Sequence[float]] | None = None) -> Advantages:
        inputs: dict[str, Any] = {}
        if "states" in self.needs:
            inputs["states"] = [state_keys(t) for t in group.trajectories]
        if "values" in self.needs and values is not None:
            inputs["values"] = values
        return self._estimate(rewards, **inputs)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know."""
        return {} if self._spread is None else self._spread.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        if self._spread is not None and state:
            self._spread.load_state_dict(state)


def turn_rewards(trajectory: Trajectory, config: GRPOConfig) -> list[float]:
    """Return what each turn is paid: the environment's reward less the penalties of the options.

    Args:
        trajectory: One of the batch.
        config: ``overlong_penalty`` and ``truncation_penalty``.
    """
    rewards = trajectory.rewards
    if config.overlong_penalty:
        limit, buffer = config.max_turn_tokens, config.overlong_buffer
        for t, count in enumerate(turn_tokens(trajectory)):
            rewards[t] += config.overlong_penalty * overlong_penalty(count, limit=limit, buffer=buffer)
    if config.truncated == "penalty" and not trajectory.stop_reason.terminates:
        rewards[-1] -= config.truncation_penalty
    return rewards


def turn_tokens(trajectory: Trajectory) -> list[int]:
    """Return how many tokens the policy sampled in each turn."""
    counts = [0] * len(trajectory.steps)
    for row in trajectory.rows:
        for turn, sampled in zip(row.turns, row.mask, strict=True):
            counts[turn] += sampled if turn >= 0 else 0
    return counts
