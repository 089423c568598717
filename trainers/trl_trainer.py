"""TRL's GRPOTrainer with an advantage for every step.

TRL adds up what an episode was paid and gives all its tokens one advantage. Its loss takes advantages of shape (B, T)
as well, for subclasses that have them, and everything between generation and loss (shuffling, splitting, accumulation,
several iterations) cuts them along the first dimension like any other tensor. So two methods are overridden: one that
keeps the rewards TRL has gathered, and one that replaces the advantages before the batch is buffered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from accelerate.utils import gather_object

from trajgym.errors import ConfigError, RewardError
from trajgym.trainers.advantages import BoundEstimator, bind
from trajgym.trainers.advantages_states import state_keys
from trajgym.trainers.trl_credit import StepsPaid, credit_groups, spread_over_tokens, turn_of_each_token
from trajgym.trainers.trl_environment import EnvironmentFactory, ToolEnvironment
from trajgym.trainers.trl_reward import EpisodeReward
from trajgym.trainers.trl_version import require_trl

require_trl()

from trl import GRPOConfig, GRPOTrainer  # noqa: E402  (only once the version is known to fit)

from trajgym.trainers.trl_functions import checked  # noqa: E402  (which imports it too)

__all__ = ["StepGRPOTrainer"]

# The losses that are sums over tokens, each weighted by an advantage.
_LOSSES = ("bnpo", "cispo", "dapo", "dr_grpo", "grpo", "sapo")


class StepGRPOTrainer(GRPOTrainer):  # type: ignore[misc]  # TRL has no types
    """GRPOTrainer whose loss weighs each turn of an episode by its own advantage.

    The rewards of the steps are those of the environments (:func:`environment_factory`); whatever other reward
    functions pay is paid with the last step, so that an episode's step rewards add up to the reward that TRL logs.
    ``scale_rewards`` divides by the spread of these sums, as it does without us.

    Args:
        model: As for ``GRPOTrainer``.
        reward_funcs: Likewise; an :class:`EpisodeReward` is added where environments of ours have none.
        args: Likewise. ``max_tool_calling_iterations`` follows the environment's ``max_turns`` unless it is set.
        environment_factory: Likewise, or a dict of them.
        estimator: Name of the estimator: step rewards of a group to advantages.
        gamma: Discount per turn, in [0, 1].
        estimator_options: More arguments of the estimator, such as ``{"baseline": "loo"}``.
        **kwargs: More arguments of ``GRPOTrainer``.

    Raises:
        ConfigError: For an option that cannot be, or that cannot go together with advantages per step.
        RewardError: From ``train``, when a reward function fails or returns what is no reward: see :func:`checked`.
        UnknownNameError: For an estimator, or an option of it, that does not exist.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        *,
        environment_factory: Any = None,
        estimator: str = "return_to_go",
        gamma: float = 1.0,
        estimator_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if args is not None:
            _refuse(args)
        factories, environment_factory = _discounted(environment_factory, gamma)
        self.credit = _estimator(estimator, gamma, estimator_options or {}, has_states=bool(factories))
        functions = [] if reward_funcs is None else reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        if sum(isinstance(f, EpisodeReward) for f in functions) > 1:
            raise ConfigError("reward_funcs holds more than one EpisodeReward, which would pay each step twice.")
        added = EpisodeReward(()) if factories and not any(isinstance(f, EpisodeReward) for f in functions) else None
        super().__init__(
            model,
            functions if added is None else [added, *functions],
            args,
            environment_factory=environment_factory,
            **kwargs,
        )
        self.reward_funcs: list[Any] = [
            f if isinstance(f, (EpisodeReward, torch.nn.Module)) else checked(f) for f in self.reward_funcs
        ]
        if added is not None:
            added.end_ids = frozenset(self.eos_token_ids)
        if factories and self.args.max_tool_calling_iterations is None:
            self.max_tool_calling_iterations = max(factory.max_turns for factory in factories) - 1

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        gathered: torch.Tensor = super()._calculate_rewards(*args, **kwargs)
        self._rewards_per_function = gathered  # of all processes. Shape: (B, functions)
        return self._rewards_per_function

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        turns = turn_of_each_token(output["completion_mask"] * output.get("tool_mask", 1))
        training = self.model.training
        advantages, dropped = credit_groups(
            gather_object(self._steps_paid(turns)),
            self.num_generations if training else self.num_generations_eval,
            self.credit,
            scale=self.scale_rewards,
        )
        self._metrics["train" if training else "eval"]["dropped_groups"].append(float(dropped))
        first = self.accelerator.process_index * len(inputs)
        output["advantages"] = spread_over_tokens(advantages[first : first + len(inputs)], turns)
        return output

    def _steps_paid(self, turns: torch.Tensor) -> list[StepsPaid | None]:
        """Return what the completions of this process were paid, ``None`` where no function said anything.

        Args:
            turns: The turn of each token. Shape: (B, T).
        """
        first = self.accelerator.process_index * len(turns)
        values = self._rewards_per_function[first : first + len(turns)].tolist()
        return [self._steps_of(i, row, int(turns[i].max()) + 1) for i, row in enumerate(values)]

    def _steps_of(self, i: int, values: list[float], turns: int) -> StepsPaid | None:
        """Return what completion i of this process was paid.

        Args:
            i: Which one.
            values: What each reward function gave, NaN for nothing.
            turns: How many turns it has.
        """
        steps, states, last = [0.0] * max(turns, 1), [], 0.0
        for function, value, weight in zip(self.reward_funcs, values, self.reward_weights.tolist(), strict=True):
            if isinstance(function, EpisodeReward) and isinstance(self.environments[i], ToolEnvironment):
                episode = self.environments[i].episode
                if episode.fault is not None:
                    return None  # whatever the others say: the policy was not to blame
                steps = [weight * reward for reward in episode.rewards]
                if "states" in self.credit.needs:
                    states = state_keys(episode.trajectory)
            elif not math.isnan(value):
                last += weight * value
            elif isinstance(function, torch.nn.Module):  # of functions, NaN is None by now
                raise RewardError(f"The reward model {type(function).__name__} scored a completion NaN.")
        steps[-1] += last
        return None if all(map(math.isnan, values)) else StepsPaid(steps, states)


def _discounted(given: Any, gamma: float) -> tuple[list[EnvironmentFactory], Any]:
    """Return the factories of ours among what was given, and what was given with them told the discount."""
    named = given if isinstance(given, dict) else {None: given}
    told = {name: f.discounted(gamma) if isinstance(f, EnvironmentFactory) else f for name, f in named.items()}
    ours = [f for f in told.values() if isinstance(f, EnvironmentFactory)]
    return ours, told if isinstance(given, dict) else told[None]


def _refuse(args: GRPOConfig) -> None:
    """Refuse what needs one advantage per completion."""
    if args.importance_sampling_level != "token":
        raise ConfigError(
            f"importance_sampling_level={args.importance_sampling_level!r} has one ratio for a whole completion, whose "
            "gradient would average the steps' advantages. Set importance_sampling_level='token'."
        )
    if args.loss_type not in _LOSSES:
        raise ConfigError(
            f"loss_type={args.loss_type!r} weighs whole completions, so steps cannot have advantages of their own. "
            f"Choose one of {', '.join(_LOSSES)}."
        )
    if args.multi_objective_aggregation != "sum_then_normalize":
        raise ConfigError(
            f"multi_objective_aggregation={args.multi_objective_aggregation!r} normalises the totals of each reward "
            "function, which says nothing of steps. Set multi_objective_aggregation='sum_then_normalize'."
        )
    if args.off_policy_mask_threshold is not None:
        raise ConfigError(
            "off_policy_mask_threshold keeps or drops a completion by the sign of its one advantage. Leave it at None."
        )


def _estimator(name: str, gamma: float, options: Mapping[str, Any], *, has_states: bool) -> BoundEstimator:
    """Return the estimator, tried out with what it will get, before a model is loaded."""
    for option in ("name", "gamma"):
        if option in options:
            raise ConfigError(f"estimator_options holds {option!r}, which is an argument of its own.")
    bound = bind(name, gamma=gamma, **options)
    if "states" in bound.needs and not has_states:
        raise ConfigError(
            f"The estimator {name!r} compares states, which only environments of trajgym's tell. Pass "
            "environment_factory=trajgym.trainers.trl.environment_factory(...), or choose another estimator."
        )
    try:
        bound([[0.0], [0.0]], states=[["start"], ["start"]])
    except ConfigError as error:
        reason = "TRL has none; choose another estimator, or train with trajgym's own trainer."
        raise ConfigError(f"{error} {reason}") from error
    return bound
