"""Playing held-out tasks with the model of a run, as it would be used: the most probable token every time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trajgym.envs.make import make
from trajgym.errors import ConfigError
from trajgym.evaluation.evaluate import Evaluation, env_maker, evaluate
from trajgym.evaluation.selection import tasks_of
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.models import make_policy, pick_device
from trajgym.trainers.sft_config import SFTConfig
from trajgym.trainers.trained import find_source, open_source
from trajgym.types import Task

__all__ = ["HeldOut"]


class HeldOut:
    """Tasks that a model is measured on before or after a training, the same ones each time.

    Args:
        env: Environment id.
        arguments: Of gym.make.
        limit: How many tasks.
        seed: Decides which ones where tasks are made up, and the draws of the environment.
        turn_tokens: Most new tokens in a turn, where the options of a run do not say.

    Raises:
        ConfigError: When the environment does not have such tasks, or its reward does not pay for right answers.
    """

    def __init__(self, env: str, arguments: Mapping[str, Any], *, limit: int, seed: int, turn_tokens: int) -> None:
        self._env, self._arguments, self._seed, self._turn_tokens = env, dict(arguments), seed, turn_tokens
        made = make(env, **arguments)
        try:
            self.tasks: list[Task] = tasks_of(made, limit, seed=seed)
            weights = getattr(getattr(made.unwrapped, "rubric", None), "weights", {})
        finally:
            made.close()
        if not weights.get("accuracy", 0.0) > 0:
            raise ConfigError(
                f"Models are judged by right answers, but the reward of {env} does not pay for 'accuracy'. Give its "
                'arguments for the evaluation a reward that does, e.g. {"reward": "sparse"}.'
            )

    def play(self, model: str | Path, options: GRPOConfig | SFTConfig) -> Evaluation:
        """Play all tasks once.

        Args:
            model: A run's folder, or any other model.
            options: Of the run: budgets, number format, device.

        Raises:
            ConfigError, CheckpointError, TemplateError: When there is no such model, or it cannot play here.
        """
        weights, tokenizer = open_source(find_source(model), dtype=options.dtype, device=pick_device(options.device))
        policy = make_policy(weights, tokenizer, self._greedy(options))
        return evaluate(policy, env_maker(policy, self._env, **self._arguments), self.tasks, seed=self._seed)

    def _greedy(self, options: GRPOConfig | SFTConfig) -> GRPOConfig:
        if isinstance(options, SFTConfig):
            turn = min(self._turn_tokens, options.max_length - 1)
            shared = {name: getattr(options, name) for name in ("thinking", "protocol_mismatch", "dtype", "device")}
            options = GRPOConfig(updates=1, max_turn_tokens=turn, max_episode_tokens=options.max_length, **shared)
        # A run trains the policy that samples and so needs a temperature; who measures may as well be greedy.
        return options.model_copy(update={"temperature": 0.0})
